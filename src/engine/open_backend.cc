#include "engine/open_backend.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "base/cpu_features.h"
#include "base/log.h"
#include "engine/cpu_experts.h"
#include "engine/memory_plan.h"

namespace heirloom {
namespace {

constexpr std::uint64_t kWorkingBytes = std::uint64_t{2560} << 20;  // activations, states and the vendor's workspace

}  // namespace

namespace {

cpu::CpuBackendOptions cpu_options_of(const EngineOptions& options) {
  cpu::CpuBackendOptions cpu_options;
  cpu_options.threads = options.threads;
  cpu_options.tier =
      select_cpu_tier(options.cpu_isa.empty() ? std::nullopt : std::optional<std::string>(options.cpu_isa));
  return cpu_options;
}

}  // namespace

std::unique_ptr<cpu::CpuBackend> open_cpu(const EngineOptions& options, Profiler* profiler) {
  cpu::CpuBackendOptions cpu_options = cpu_options_of(options);
  cpu_options.profiler = profiler;
  return std::make_unique<cpu::CpuBackend>(cpu_options);
}

std::shared_ptr<cuda::ExpertHost> open_expert_host(const EngineOptions& options) {
  cpu::CpuBackendOptions cpu_options = cpu_options_of(options);
  cpu_options.interleave_weights = true;  // copies to the GPU and threads of every socket read them
  return std::make_shared<engine::CpuExperts>(std::make_unique<cpu::CpuBackend>(cpu_options));
}

namespace {

struct WeightBytes {
  std::uint64_t all = 0, experts = 0;
};
WeightBytes weight_bytes(const model::ModelFiles& files) {
  WeightBytes bytes;
  for (const TensorSource* source : {files.text.get(), files.vision.get()}) {
    if (source == nullptr || (source == files.vision.get() && files.vision == files.text)) continue;
    for (const std::string& name : source->names()) {
      try {
        const TensorView* tensor = source->find(name);
        bytes.all += tensor->data.size();
        // Names of GGUF (blk.0.ffn_up_exps.weight) and of checkpoints (...mlp.experts.0.up_proj.weight).
        if (name.find("_exps.") != std::string::npos || name.find(".experts.") != std::string::npos) bytes.experts += tensor->data.size();
      } catch (const Error&) {  // a type that is refused when the tensor is asked for
      }
    }
  }
  return bytes;
}

std::unique_ptr<ops::Backend> open_cuda(const EngineOptions& options, int index, const model::ModelFiles& files, Profiler* profiler) {
  cuda::DeviceOptions device;
  device.index = index;
  device.arch = options.cuda_arch;
  device.vram_bytes = options.vram_bytes;
  device.fermi = options.profile == "fermi";
  cuda::CudaBackendOptions backend;
  backend.profiler = profiler;
  if (options.gemm == "f32") backend.gemm = cuda::GemmType::f32;
  if (options.gemm == "bf16") backend.gemm = cuda::GemmType::bf16;
  std::unique_ptr<cuda::Device> card = cuda::open_device(device);
  const WeightBytes weights = weight_bytes(files);
  const std::uint64_t ceiling = card->ceiling_bytes(), room = std::min(kWorkingBytes, ceiling / 2);
  if (weights.experts > 0 && weights.all + room > ceiling) {
    log::info("{} MiB of weights exceed {} MiB of GPU memory (less {} MiB to work in): experts stay in host memory", weights.all >> 20,
              ceiling >> 20, room >> 20);
    const std::uint64_t others = weights.all - weights.experts + room;
    backend.expert_bytes = ceiling > others ? ceiling - others : 0;
    backend.expert_host = open_expert_host(options);
  }
  return std::make_unique<cuda::CudaBackend>(std::move(card), backend);
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

DeviceChoice choose_device(const EngineOptions& options) {
  if (!options.profile.empty() && options.profile != "fermi") {
    fail(ErrorKind::usage, "--profile {}: expected fermi", options.profile);
  }
  if (!options.gemm.empty() && options.gemm != "f32" && options.gemm != "bf16") {
    fail(ErrorKind::usage, "--gemm {}: expected f32 or bf16", options.gemm);
  }
  cuda::parse_arch(options.cuda_arch);
  if (!options.cpu_isa.empty()) select_cpu_tier(options.cpu_isa);  // a wrong name is told before devices are looked for
  if (options.device == "cpu") return {-1, "--device cpu"};
  const bool automatic = options.device == "auto";
  const int wanted = automatic ? -1 : device_index(options.device);

  // One line a device: used, or why not.
  DeviceChoice choice{wanted, ""};
  for (const cuda::DeviceReport& report : cuda::list_devices()) {
    const bool takes = report.usable && (automatic ? choice.cuda < 0 : report.index == wanted);
    if (takes) choice.cuda = report.index;
    if (!report.usable) choice.why_not = report.line;
    if (!automatic && report.index < 0) fail(ErrorKind::device, "--device {}: {}", options.device, report.line);
    log::info("{}{}", report.line, takes ? ", used" : report.usable ? ", not used: another device was chosen" : "");
  }
  return choice;
}

std::unique_ptr<ops::Backend> open_backend(const EngineOptions& options, const model::ModelFiles& files, Profiler* profiler) {
  const int chosen = choose_device(options).cuda;
  if (chosen < 0) return open_cpu(options, profiler);
  if (options.device != "auto") return open_cuda(options, chosen, files, profiler);
  try {
    return open_cuda(options, chosen, files, profiler);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::device) throw;
    log::warning("cuda:{} cannot be used, the CPU is: {}", chosen, error.what());
    return open_cpu(options, profiler);
  }
}

std::uint64_t memory_left(ops::Backend& backend) {
  if (auto* gpu = dynamic_cast<cuda::CudaBackend*>(&backend)) {
    if (gpu->expert_stream()) gpu->expert_stream()->open();
    const cuda::Device& device = gpu->device();
    return device.ceiling_bytes() - std::min(device.ceiling_bytes(), device.used_bytes());
  }
  return engine::available_host_bytes();
}

std::int64_t largest_chunk(ops::Backend& backend) {
  auto* gpu = dynamic_cast<cuda::CudaBackend*>(&backend);
  if (gpu == nullptr) return 512;
  // Streamed experts cost their bytes once a step, however many tokens it has.
  if (gpu->expert_stream() != nullptr) return 4096;
  return gpu->device().options().fermi ? 1024 : 2048;
}

std::int64_t fixed_step(ops::Backend& backend) {
  auto* gpu = dynamic_cast<cuda::CudaBackend*>(&backend);
  if (gpu == nullptr || gpu->expert_stream() != nullptr) return 0;
  // 512 rows reach 90 % of the speed of 2,048 with the 0.8B model on an H200, 256 only 60 %; where arithmetic is scarce, fewer do.
  return gpu->device().options().fermi ? 128 : 512;
}

}  // namespace heirloom
