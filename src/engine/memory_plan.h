// How much context fits: divides memory between weights (already there), live sequences and the prefix cache. A request
// within `context_tokens` then always fits; one beyond it is refused when it is submitted.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "heirloom/engine.h"
#include "model/model.h"

namespace heirloom::engine {

struct MemoryPlan {
  DType kv_type = DType::f32;
  int context_tokens = 0;                 // per request
  std::uint64_t bytes_per_request = 0;    // KV pages of a full context and the recurrent state
  std::uint64_t cache_bytes = 0;          // prefix snapshots and picture features: as asked, at most a quarter of what is there
  std::uint64_t available_bytes = 0;      // for all that, when the plan was made
};

/// Host memory that this process may still use: MemAvailable, no more than its cgroup leaves.
std::uint64_t available_host_bytes();

/// Chooses KV type and context. Error{usage} for a bad option, Error{does_not_fit} with both numbers when the context that
/// was asked for does not fit.
MemoryPlan make_memory_plan(const model::Model& model, const EngineOptions& options, std::uint64_t available_bytes);

}  // namespace heirloom::engine
