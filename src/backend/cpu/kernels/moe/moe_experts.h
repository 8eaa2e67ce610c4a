// The mixture-of-experts feed-forward layer: router, routed SwiGLU experts, shared expert.
#pragma once

#include "backend/cpu/kernels/moe/expert_groups.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

/// out = sum over the chosen experts of weight * down(silu(gate x) * up x) + sigmoid(shared_router x) * shared(x).
/// x, out [T, hidden]; out must not alias x. Weights come from pack_weight; the shared ones may all be null.
/// A token's experts are added in ascending order of their index, as the reference implementation's loop over experts
/// does, then the shared expert; so a token's result does not depend on the others. Each chosen expert's weights are read
/// once a call. `taps` and its members may be null.
/// `routing`: null, or choices made elsewhere; then the router is not used and may be null.
struct MoeRouting {
  const std::int32_t* ids;  // [T, top_k]
  const float* weights;     // [T, top_k]
};
void moe_experts(ThreadPool& pool, CpuTier tier, ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out,
                 const ops::MoeTaps* taps, const MoeRouting* routing = nullptr);

}  // namespace heirloom::cpu
