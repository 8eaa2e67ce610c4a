// Mixture of experts: router in f32 always; few rows take a GEMV per (token, expert), many are sorted by expert and multiplied
// in groups.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

using u64 = unsigned long long;
constexpr std::int64_t kExpertGemvRows = 8;
constexpr int kMaxExperts = 1024, kMaxTopK = 64;

}  // namespace

void CudaBackend::moe_ffn(ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out, const ops::MoeTaps* taps) {
  const int rows = static_cast<int>(x.rows), top_k = weights.top_k, pairs = rows * top_k;
  const auto& gate = static_cast<const CudaWeight&>(*weights.gate);
  const auto& up = static_cast<const CudaWeight&>(*weights.up);
  const auto& down = static_cast<const CudaWeight&>(*weights.down);
  const int experts = static_cast<int>(weights.router->rows), inner = static_cast<int>(gate.rows);
  if (experts > kMaxExperts || top_k > kMaxTopK) {
    fail(ErrorKind::bad_file, "{} experts with top {}: the GPU kernels take at most {} and {}; use --device cpu", experts, top_k,
         kMaxExperts, kMaxTopK);
  }
  const ops::MoeTaps none;
  const ops::MoeTaps& tap = taps ? *taps : none;
  float* logits = tap.router_logits ? tap.router_logits : scratch_f32(kSlotRouter, static_cast<std::int64_t>(rows) * experts);
  auto* ids = tap.topk_indices ? tap.topk_indices : static_cast<std::int32_t*>(scratch(kSlotIds, static_cast<std::size_t>(pairs) * 4));
  float* top = tap.topk_weights ? tap.topk_weights : scratch_f32(kSlotTopWeights, pairs);
  float* hidden = scratch_f32(kSlotGate, static_cast<std::int64_t>(pairs) * inner);
  float* expert_out = scratch_f32(kSlotExperts, static_cast<std::int64_t>(pairs) * out.cols);

  // Router and the shared expert read the same input; the logits of both routers come from one call.
  float* shared_logit = nullptr;
  float* shared = nullptr;
  std::vector<ops::LinearOut> routers{{weights.router, logits}};
  if (weights.shared_gate) {
    shared_logit = tap.shared_gate_logit ? tap.shared_gate_logit : scratch_f32(kSlotSharedLogit, rows);
    shared = tap.shared_expert ? tap.shared_expert : scratch_f32(kSlotShared, static_cast<std::int64_t>(rows) * out.cols);
    routers.push_back({weights.shared_router, shared_logit});
  }
  linear_now(x, routers, true);
  flush();
  device_->launch("moe_route", {static_cast<unsigned>(std::min(rows, 65535))}, {128}, 0, static_cast<int*>(ids), top,
                  static_cast<const float*>(logits), rows, experts, top_k);

  if (x.rows <= kExpertGemvRows && gate.format == up.format && static_cast<std::size_t>(std::max(gate.cols, down.cols)) * 4 <= 36 * 1024) {
    expert_gemv(gate, &up, x.data, top_k, ids, pairs, nullptr, hidden);
    expert_gemv(down, nullptr, hidden, 1, ids, pairs, expert_out, nullptr);
  } else {
    auto* offsets = static_cast<int*>(scratch(kSlotOffsets, static_cast<std::size_t>(experts + 1) * 4));
    auto* order = static_cast<int*>(scratch(kSlotOrder, static_cast<std::size_t>(pairs) * 4));
    device_->launch("moe_sort", {1}, {kMaxExperts}, 0, offsets, order, static_cast<const int*>(ids), pairs, experts);
    float* up_out = scratch_f32(kSlotUp, static_cast<std::int64_t>(pairs) * inner);
    const auto product = [&](const CudaWeight& weight, const float* in, float* to, int rows_per_input) {
      const std::string kernel = fmt::format("moe_gemm_{}", weight.format);
      // At most one started tile per expert beyond the full ones.
      const int tiles = std::min(pairs, pairs / 64 + experts);
      HEIRLOOM_CHECK(tiles <= 65535);
      device_->launch(kernel.c_str(), {static_cast<unsigned>((weight.rows + 63) / 64), static_cast<unsigned>(tiles)}, {256}, 0, to,
                      in, static_cast<const unsigned char*>(weight.data), static_cast<u64>(weight.elements),
                      static_cast<const int*>(offsets), static_cast<const int*>(order), experts, static_cast<int>(weight.rows),
                      static_cast<int>(weight.cols), rows_per_input);
    };
    product(gate, x.data, hidden, top_k);
    product(up, x.data, up_out, top_k);
    const ops::Matrix h{hidden, pairs, inner}, u{up_out, pairs, inner};
    swiglu(h, u, h);
    product(down, hidden, expert_out, 1);
  }

  if (weights.shared_gate) {
    const std::int64_t width = weights.shared_gate->rows;
    const ops::Matrix g{scratch_f32(kSlotGate, std::max<std::int64_t>(rows * width, static_cast<std::int64_t>(pairs) * inner)), rows, width};
    const ops::Matrix u{scratch_f32(kSlotUp, rows * width), rows, width};
    const ops::LinearOut projections[] = {{weights.shared_gate, g.data}, {weights.shared_up, u.data}};
    linear(x, projections);
    swiglu(g, u, g);
    const ops::LinearOut projection{weights.shared_down, shared};
    linear(g, {&projection, 1});
    flush();
  }
  device_->launch("moe_combine", {static_cast<unsigned>(std::min(rows, 65535))}, {256}, 0, out.data,
                  static_cast<const float*>(expert_out), static_cast<const float*>(top), static_cast<const float*>(shared),
                  static_cast<const float*>(shared_logit), tap.experts, tap.expert_out_norm, rows, top_k,
                  static_cast<int>(out.cols));
}

}  // namespace heirloom::cuda
