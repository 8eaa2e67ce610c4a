// The one place that turns --device, --threads, --cpu-isa, --cuda-arch and friends into a backend.
#pragma once

#include <memory>

#include "base/profiler.h"
#include "heirloom/engine.h"
#include "ops/backend.h"

namespace heirloom {

/// Error{usage} for an unknown name, Error{device} for hardware that is not there. `profiler` may be null; it must outlive
/// the backend.
std::unique_ptr<ops::Backend> open_backend(const EngineOptions& options, Profiler* profiler = nullptr);

/// Memory that states may still use there: host memory for the CPU, what is left under the ceiling of a GPU.
std::uint64_t memory_left(ops::Backend& backend);

}  // namespace heirloom
