// The part of a device that does not talk to a driver: memory accounting, launch limits, timing.
#include "backend/cuda/device.h"

#include "base/check.h"

namespace heirloom::cuda {
namespace {

std::string mib(std::uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

void check_fermi_limits(std::string_view kernel, Dim grid, Dim block, std::size_t shared_bytes) {
  // CUDA C Programming Guide, compute capability 2.x column: grid 65535 an axis, block 1024 x 1024 x 64 and 1024 threads,
  // 48 KiB of shared memory.
  const auto inside = [](unsigned value, unsigned most) { return value >= 1 && value <= most; };
  const bool grid_ok = inside(grid.x, 65535) && inside(grid.y, 65535) && inside(grid.z, 65535);
  const bool block_ok = inside(block.x, 1024) && inside(block.y, 1024) && inside(block.z, 64) &&
                        static_cast<std::uint64_t>(block.x) * block.y * block.z <= 1024;
  if (grid_ok && block_ok && shared_bytes <= 48 * 1024) return;
  fail(ErrorKind::device,
       "{}: grid {}x{}x{}, block {}x{}x{}, {} bytes of shared memory exceed compute capability 2.0 (grid 65535 an axis, 1024 "
       "threads, 49152 bytes)",
       kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
}

int parse_arch(std::string_view arch) {
  if (arch.empty()) return 0;
  for (const int tier : {20, 61, 80, 90}) {
    if (arch == fmt::format("sm{}", tier)) return tier;
  }
  fail(ErrorKind::usage, "--cuda-arch {}: unknown; use sm20, sm61, sm80 or sm90", arch);
}

void* Device::try_alloc(std::size_t bytes) {
  const std::size_t rounded = (bytes + 255) & ~static_cast<std::size_t>(255);
  if (rounded < bytes || used_bytes_ + rounded > ceiling_bytes_) return nullptr;
  void* data = raw_alloc(rounded == 0 ? 256 : rounded);
  if (!data) return nullptr;
  allocations_[data] = rounded;
  used_bytes_ += rounded;
  peak_bytes_ = used_bytes_ > peak_bytes_ ? used_bytes_ : peak_bytes_;
  return data;
}

void* Device::alloc(std::size_t bytes, std::string_view what) {
  if (void* data = try_alloc(bytes)) return data;
  fail(ErrorKind::does_not_fit, "{} of GPU memory for {} do not fit: {} of {} are in use; give more with --vram, or use a "
       "shorter --ctx, fewer --parallel or a smaller quantisation", mib(bytes), what, mib(used_bytes_), mib(ceiling_bytes_));
}

void Device::free(void* data) noexcept {
  const auto found = allocations_.find(data);
  if (found == allocations_.end()) return;
  used_bytes_ -= found->second;
  allocations_.erase(found);
  raw_free(data);
}

int Device::tier_of(std::string_view kernel) const { return find_tier(kernel); }

void Device::launch_checked(const char* kernel, Dim grid, Dim block, unsigned cluster, std::size_t shared_bytes, void** arguments) {
  ++launches_;
  timed([&] { return std::string(kernel); }, [&] { raw_launch(kernel, grid, block, cluster, shared_bytes, arguments); });
}

const std::map<std::string, KernelTime>& Device::kernel_times() {
  for (const Timed& entry : timed_) {
    KernelTime& time = kernel_times_[entry.what];
    ++time.launches;
    time.milliseconds += elapsed_ms(entry.begin, entry.end);
    destroy_event(entry.begin);
    destroy_event(entry.end);
  }
  timed_.clear();
  return kernel_times_;
}

void Device::reset_kernel_times() {
  kernel_times();
  kernel_times_.clear();
}

}  // namespace heirloom::cuda
