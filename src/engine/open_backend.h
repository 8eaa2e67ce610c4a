// The one place that turns --device, --threads, --cpu-isa, --cuda-arch and friends into a backend.
#pragma once

#include <memory>
#include <string>

#include "base/profiler.h"
#include "heirloom/engine.h"
#include "model/model_files.h"
#include "ops/backend.h"

namespace heirloom {

namespace cpu {
class CpuBackend;
}
namespace cuda {
class ExpertHost;
}

struct DeviceChoice {
  int cuda = -1;        // the GPU's number; -1: the CPU
  std::string why_not;  // then, one sentence
};

/// The device that --device and friends mean, every option checked; logs one line a GPU. Error{usage}, Error{device}.
DeviceChoice choose_device(const EngineOptions& options);

/// The CPU backend of --threads and --cpu-isa.
std::unique_ptr<cpu::CpuBackend> open_cpu(const EngineOptions& options, Profiler* profiler = nullptr);
/// Where the experts of a model larger than the GPU's memory live: CPU memory, spread over the nodes of a machine with several sockets.
std::shared_ptr<cuda::ExpertHost> open_expert_host(const EngineOptions& options);

/// Error{usage} for an unknown name, Error{device} for hardware that is not there. `profiler` may be null; it must outlive
/// the backend. Where the weights of `files` exceed the GPU's memory (or --vram) and the model has experts, the experts stay in
/// host memory: streamed to the GPU for prompts, computed on the CPU for single tokens.
std::unique_ptr<ops::Backend> open_backend(const EngineOptions& options, const model::ModelFiles& files, Profiler* profiler = nullptr);

/// Memory that states may still use there: host memory for the CPU, what is left under the ceiling of a GPU. Call with the
/// model's weights loaded.
std::uint64_t memory_left(ops::Backend& backend);

/// Prompt tokens that a step may carry at most: a power of two.
std::int64_t largest_chunk(ops::Backend& backend);

/// Prompt tokens of a step where steps must be fixed for resumed prompts to be exact (fixed_steps.h); 0 = any step is exact, or
/// exactness would cost too much: streamed experts are read anew by every step, so a resumed prompt equals a cold one to rounding.
std::int64_t fixed_step(ops::Backend& backend);

}  // namespace heirloom
