#include "engine/open_backend.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "base/cpu_features.h"
#include "base/log.h"
#include "engine/memory_plan.h"

namespace heirloom {
namespace {

std::unique_ptr<ops::Backend> open_cpu(const EngineOptions& options, Profiler* profiler) {
  cpu::CpuBackendOptions cpu_options;
  cpu_options.threads = options.threads;
  cpu_options.tier =
      select_cpu_tier(options.cpu_isa.empty() ? std::nullopt : std::optional<std::string>(options.cpu_isa));
  cpu_options.profiler = profiler;
  return std::make_unique<cpu::CpuBackend>(cpu_options);
}

std::unique_ptr<ops::Backend> open_cuda(const EngineOptions& options, int index, Profiler* profiler) {
  cuda::DeviceOptions device;
  device.index = index;
  device.arch = options.cuda_arch;
  device.vram_bytes = options.vram_bytes;
  device.fermi = options.profile == "fermi";
  cuda::CudaBackendOptions backend;
  backend.profiler = profiler;
  if (options.gemm == "f32") backend.gemm = cuda::GemmType::f32;
  if (options.gemm == "bf16") backend.gemm = cuda::GemmType::bf16;
  return std::make_unique<cuda::CudaBackend>(cuda::open_device(device), backend);
}

// N of "cuda:N"; 0 for "cuda".
int device_index(const std::string& device) {
  if (device == "cuda") return 0;
  int index = -1;
  const char* end = device.data() + device.size();
  const auto parsed = std::from_chars(device.data() + 5, end, index);
  if (!device.starts_with("cuda:") || parsed.ec != std::errc() || parsed.ptr != end || index < 0) {
    fail(ErrorKind::usage, "--device {}: expected auto, cpu or cuda[:N]", device);
  }
  return index;
}

}  // namespace

std::unique_ptr<ops::Backend> open_backend(const EngineOptions& options, Profiler* profiler) {
  if (!options.profile.empty() && options.profile != "fermi") {
    fail(ErrorKind::usage, "--profile {}: expected fermi", options.profile);
  }
  if (!options.gemm.empty() && options.gemm != "f32" && options.gemm != "bf16") {
    fail(ErrorKind::usage, "--gemm {}: expected f32 or bf16", options.gemm);
  }
  cuda::parse_arch(options.cuda_arch);
  if (!options.cpu_isa.empty()) select_cpu_tier(options.cpu_isa);  // a wrong name is told before devices are looked for
  if (options.device == "cpu") return open_cpu(options, profiler);
  const bool automatic = options.device == "auto";
  const int wanted = automatic ? -1 : device_index(options.device);

  // One line a device: used, or why not.
  int chosen = wanted;
  for (const cuda::DeviceReport& report : cuda::list_devices()) {
    const bool takes = report.usable && (automatic ? chosen < 0 : report.index == wanted);
    if (takes) chosen = report.index;
    if (!automatic && report.index < 0) fail(ErrorKind::device, "--device {}: {}", options.device, report.line);
    log::info("{}{}", report.line, takes ? ", used" : report.usable ? ", not used: another device was chosen" : "");
  }
  if (chosen < 0) return open_cpu(options, profiler);
  if (!automatic) return open_cuda(options, chosen, profiler);
  try {
    return open_cuda(options, chosen, profiler);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::device) throw;
    log::warning("cuda:{} cannot be used, the CPU is: {}", chosen, error.what());
    return open_cpu(options, profiler);
  }
}

std::uint64_t memory_left(ops::Backend& backend) {
  if (auto* gpu = dynamic_cast<cuda::CudaBackend*>(&backend)) {
    const cuda::Device& device = gpu->device();
    return device.ceiling_bytes() - std::min(device.ceiling_bytes(), device.used_bytes());
  }
  return engine::available_host_bytes();
}

}  // namespace heirloom
