// cuda::Device over the emulator. A graph is the list of calls made between begin_capture and end_capture, so recording and
// replay are exercised without a driver. The copy lane runs at once: the emulator has no overlap to offer. Copies from its own page-locked
// memory run as late as they may, so that whoever overwrites it too early sees it.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda_emulator/emulator.h"
#include "base/check.h"

namespace heirloom::emulator {
namespace {

void bf16_product(const cuda::GemmCall& call) {
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(call.batch) * call.m; ++at) {
    const std::int64_t of = at / call.m, i = at % call.m;
    const auto* a = static_cast<const std::uint16_t*>(call.a) + of * call.stride_a;
    const auto* b = static_cast<const std::uint16_t*>(call.b) + of * call.stride_b;
    for (std::int64_t j = 0; j < call.n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < call.k; ++k) {
        sum += bf16_to_f32(a[i * call.lda + k]) * bf16_to_f32(call.b_transposed ? b[j * call.ldb + k] : b[k * call.ldb + j]);
      }
      float& c = call.c[of * call.stride_c + i * call.ldc + j];
      c = call.alpha * sum + (call.beta != 0.0f ? call.beta * c : 0.0f);
    }
  }
}

class EmulatorDevice : public cuda::Device {
 public:
  EmulatorDevice(const cuda::DeviceOptions& options, Order order) : Device(options), order_(order) {
    info_.name = "CPU emulator";
    info_.emulated = true;
    info_.graphs = options.graphs && !options.fermi;
    const int forced = cuda::parse_arch(options.arch);
    info_.tier = options.fermi ? 20 : forced != 0 ? forced : 20;
    if (info_.tier >= 80) info_.shared_bytes = 227 * 1024;
    info_.clusters = info_.tier >= 90;
    info_.compute_major = info_.tier / 10;
    info_.compute_minor = info_.tier % 10;
    ceiling_bytes_ = options.vram_bytes != 0 ? options.vram_bytes : std::uint64_t{4} << 30;
    info_.total_bytes = info_.free_bytes = ceiling_bytes_;
  }

  cuda::HostMemory alloc_host(std::size_t bytes) override {
    cuda::HostMemory memory{std::malloc(bytes == 0 ? 1 : bytes), bytes, true};
    if (!memory.data) fail(ErrorKind::does_not_fit, "{} bytes of host memory do not fit", bytes);
    locked_[static_cast<const std::byte*>(memory.data)] = bytes;
    return memory;
  }
  void free_host(cuda::HostMemory& memory) noexcept override {
    run_late_copies();
    locked_.erase(static_cast<const std::byte*>(memory.data));
    std::free(memory.data);
    memory = {};
  }
  bool lock_host(void*, std::size_t) override { return true; }
  void unlock_host(void*) noexcept override {}

  void copy_in(void* device, const void* host, std::size_t bytes, cuda::Lane) override {
    if (!recording_ && is_locked(host)) {
      late_copies_.push_back([=] { std::memcpy(device, host, bytes); });
      return;
    }
    do_now_or_record([=] { std::memcpy(device, host, bytes); }, bytes);
  }
  void copy_out(void* host, const void* device, std::size_t bytes, cuda::Lane) override {
    do_now_or_record([=] { std::memcpy(host, device, bytes); }, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, cuda::Lane) override {
    do_now_or_record([=] { std::memcpy(to, from, bytes); }, bytes);
  }
  void fill(void* device, unsigned char value, std::size_t bytes, cuda::Lane) override {
    do_now_or_record([=] { std::memset(device, value, bytes); }, bytes);
  }
  void synchronize(cuda::Lane) override { run_late_copies(); }

  cuda::Event create_event() override { return new Moment; }
  void destroy_event(cuda::Event event) noexcept override { delete static_cast<Moment*>(event); }
  void record(cuda::Event event, cuda::Lane) override {
    *static_cast<Moment*>(event) = {std::chrono::steady_clock::now(), copied_ + late_copies_.size()};
  }
  void wait(cuda::Lane, cuda::Event) override {}
  void wait_host(cuda::Event event) override { run_late_copies(static_cast<Moment*>(event)->copies); }
  double elapsed_ms(cuda::Event from, cuda::Event to) override {
    return std::chrono::duration<double, std::milli>(static_cast<Moment*>(to)->time - static_cast<Moment*>(from)->time).count();
  }

  // Stands in for the vendor's BF16 products (FP32 ones run on our own kernel, as without cuBLAS).
  bool has_vendor_gemm(bool bf16) override { return bf16 && info_.tier >= 80; }
  bool vendor_gemm(const cuda::GemmCall& call) override {
    if (!has_vendor_gemm(call.bf16)) return false;
    do_now_or_record([call] { bf16_product(call); }, 1);
    return true;
  }

  void begin_capture() override { recording_ = std::make_unique<Recording>(); }
  cuda::Graph end_capture() override { return recording_.release(); }
  void abandon_capture() noexcept override { recording_.reset(); }
  void run_graph(cuda::Graph graph) override {
    run_late_copies();
    for (const auto& step : *static_cast<Recording*>(graph)) step();
  }
  void destroy_graph(cuda::Graph graph) noexcept override { delete static_cast<Recording*>(graph); }

 protected:
  void* raw_alloc(std::size_t bytes) override {
    void* data = std::aligned_alloc(256, bytes);
    if (data) std::memset(data, 0xff, bytes);
    return data;
  }
  void raw_free(void* data) noexcept override {
    run_late_copies();
    std::free(data);
  }
  int find_tier(std::string_view kernel) const override {
    const auto found = kernels().find(std::string(kernel));
    if (found == kernels().end()) return 0;
    int best = 0;
    for (const auto& [tier, unused] : found->second) {
      if (tier <= info_.tier) best = tier;
    }
    return best;
  }
  void raw_launch(const char* name, cuda::Dim grid, cuda::Dim block, unsigned cluster, std::size_t shared_bytes, void** arguments) override {
    const int tier = find_tier(name);
    if (tier == 0) fail(ErrorKind::internal, "no kernel named {} in tiers up to sm{}", name, info_.tier);
    if (tier == 20) cuda::check_fermi_limits(name, grid, block, shared_bytes);
    const Kernel& kernel = kernels().at(name).at(tier);
    if (block.x * block.y * block.z > static_cast<unsigned>(kernel.max_threads)) {
      fail(ErrorKind::internal, "{}: {} threads, declared for {}", name, block.x * block.y * block.z, kernel.max_threads);
    }
    const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
    if (!recording_) {
      run_late_copies();
      run_kernel(name, kernel, g, b, cluster, shared_bytes, arguments, order_);
      return;
    }
    // Like a CUDA graph, a recording keeps the argument values of the call.
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (std::size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
      const char* value = static_cast<const char*>(arguments[i]);
      values->emplace_back(value, value + kernel.argument_bytes[i]);
    }
    recording_->push_back([this, kernel_name = std::string(name), &kernel, grid, block, cluster, shared_bytes, values] {
      std::vector<void*> pointers;
      for (auto& value : *values) pointers.push_back(value.data());
      const unsigned gg[] = {grid.x, grid.y, grid.z}, bb[] = {block.x, block.y, block.z};
      run_kernel(kernel_name, kernel, gg, bb, cluster, shared_bytes, pointers.data(), order_);
    });
  }

 private:
  using Recording = std::vector<std::function<void()>>;
  void do_now_or_record(std::function<void()> step, std::size_t bytes) {
    if (bytes == 0) return;
    if (recording_) {
      recording_->push_back(std::move(step));
    } else {
      run_late_copies();
      step();
    }
  }
  bool is_locked(const void* host) const {
    const auto* at = static_cast<const std::byte*>(host);
    const auto after = locked_.upper_bound(at);
    return after != locked_.begin() && at < std::prev(after)->first + std::prev(after)->second;
  }
  /// Those before the given one, counted from the first there ever was.
  void run_late_copies(std::uint64_t until = ~std::uint64_t{0}) {
    while (!late_copies_.empty() && copied_ < until) {
      const std::function<void()> copy = std::move(late_copies_.front());
      late_copies_.pop_front();
      ++copied_;
      copy();
    }
  }
  struct Moment {
    std::chrono::steady_clock::time_point time;
    std::uint64_t copies = 0;  // late copies before it
  };
  Order order_;
  std::map<const std::byte*, std::size_t> locked_;
  std::deque<std::function<void()>> late_copies_;
  std::uint64_t copied_ = 0;  // late copies that ran
  std::unique_ptr<Recording> recording_;
};

}  // namespace

std::unique_ptr<cuda::Device> open(const cuda::DeviceOptions& options, Order order) {
  return std::make_unique<EmulatorDevice>(options, order);
}

}  // namespace heirloom::emulator
