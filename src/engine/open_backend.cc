#include "engine/open_backend.h"

#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "base/cpu_features.h"

namespace heirloom {

std::unique_ptr<ops::Backend> open_backend(const EngineOptions& options, Profiler* profiler) {
  if (options.device != "auto" && options.device != "cpu") {
    if (options.device == "cuda" || options.device.starts_with("cuda:")) {
      fail(ErrorKind::device, "--device {}: no usable NVIDIA GPU; --device cpu runs without one", options.device);
    }
    fail(ErrorKind::usage, "--device {}: expected auto, cpu or cuda[:N]", options.device);
  }
  cpu::CpuBackendOptions cpu_options;
  cpu_options.threads = options.threads;
  cpu_options.tier =
      select_cpu_tier(options.cpu_isa.empty() ? std::nullopt : std::optional<std::string>(options.cpu_isa));
  cpu_options.profiler = profiler;
  return std::make_unique<cpu::CpuBackend>(cpu_options);
}

}  // namespace heirloom
