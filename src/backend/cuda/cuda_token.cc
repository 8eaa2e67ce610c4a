// One token through a layer with experts or with more value heads than key heads, where a step may be recorded (sm_90): launches that read
// the residual stream in one piece and bring their weights to the multiprocessors while the launch before runs (kernels/token_rows.h,
// gdn_token.h, router_logits, expert_token.h). A delta rule is three, experts are three; other shapes and types take the usual kernels.
#include <algorithm>
#include <bit>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/layer_weight.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

constexpr int kTokenWarps = kTokenThreads / 32;
constexpr std::int64_t kMailBytes = 16;

bool takes_row(std::int64_t k) { return k % 256 == 0 && k <= kTokenMaxK; }

}  // namespace

// Where the residual stream `x` lies as one row.
const float* CudaBackend::residual_in_one_piece(const float* x) {
  if (residual_ && residual_->of == x && residual_->parts > 0) settle_residual();
  return residual_ && residual_->of == x ? residual_->base : x;
}

// args.x, norm, weights, first_row, rows, segments and what becomes of the sums are given. None: it takes more shared memory than there is.
std::optional<CudaBackend::TokenRowsLaunch> CudaBackend::plan_token_rows(TokenRowsArgs args, std::string_view format) const {
  const int gate_blocks = (2 * args.heads + kTokenGateRows - 1) / kTokenGateRows;
  const int at_once = std::max(1, device_->info().multiprocessors - gate_blocks);
  const int rows_of_warp = (args.rows + at_once * kTokenWarps - 1) / (at_once * kTokenWarps), R = rows_of_warp > 1 ? 3 : 1;
  args.rounds = std::min((rows_of_warp + R - 1) / R, 8);  // a lane finishes one row of each
  const int rows_of_block = kTokenWarps * R * args.rounds;
  args.blocks = (args.rows + rows_of_block - 1) / rows_of_block;
  const std::int64_t gate_bytes = args.heads == 0 ? 0 : kTokenGateRows * staged_row_bytes(args.gate_format == kGateQ8_0 ? "q8_0" : "q4_0", args.k);
  const std::int64_t shared = kMailBytes + 4 * kTokenWarps + int8_row_bytes(args.k) +
                              std::max(rows_of_block * staged_row_bytes(format, args.k), gate_bytes);
  if (static_cast<std::size_t>(shared) > device_->info().shared_bytes) return std::nullopt;
  args.groups = args.k / 32;
  args.inverse_k = 1.0f / static_cast<float>(args.k);
  return TokenRowsLaunch{fmt::format("token_rows_{}_{}", format, R), static_cast<unsigned>(args.blocks + gate_blocks), static_cast<std::size_t>(shared), args};
}

void CudaBackend::launch(const TokenRowsLaunch& rows) { device_->launch(rows.kernel.c_str(), {rows.blocks}, {kTokenThreads}, rows.shared_bytes, rows.args); }

// False where it is more than the products of one row, perhaps normed and added to the residual stream.
bool CudaBackend::launch_token_rows(const PendingGemv& gemv) {
  const GemvArgs& from = gemv.args;
  if (!collecting_ || from.m != 1 || from.expert_ids || from.paired || from.conv_weight || from.segment_count > kTokenSegments ||
      (from.residual && from.segment_count > 1) || !stageable(gemv.format) || !takes_row(from.k)) {
    return false;
  }
  TokenRowsArgs args{};
  args.x = from.x;
  args.norm_weight = from.norm_weight;
  args.eps = from.eps;
  args.k = from.k;
  args.normed = from.normed;
  args.normed_copy = from.normed_copy;
  args.residual = from.residual;
  args.residual_from = from.residual_from ? from.residual_from : from.residual;
  for (int i = 0; i < from.segment_count; ++i) {
    if (from.segments[i].bias) return false;
    args.weights[i] = {from.segments[i].data, from.segments[i].elements};
    args.out[i] = from.segments[i].out;
    args.first_row[i] = args.rows;
    args.rows += from.segments[i].rows;
  }
  args.segments = from.segment_count;
  const auto rows = plan_token_rows(args, gemv.format);
  if (rows) launch(*rows);
  return rows.has_value();
}

bool CudaBackend::launch_gdn_token(const PendingHalf& half) {
  const ops::GdnWeights& weights = *half.gdn;
  const auto& outs = half.in.outs;
  const CudaWeight &qkv = cuda_weight(outs[0].weight), &z = cuda_weight(outs[1].weight), &a = cuda_weight(outs[2].weight),
                   &b = cuda_weight(outs[3].weight), &out = *half.last;
  const int D = weights.head_k_dim, nk = weights.num_k_heads, nv = weights.num_v_heads;
  const std::string_view format = qkv.format, gate_format = a.format;
  if ((D != 64 && D != 128) || weights.head_v_dim != D || plan_->shape.conv_kernel != 4 || !takes_row(qkv.cols) || !takes_row(out.cols) ||
      out.cols != static_cast<std::int64_t>(nv) * D || out.rows != qkv.cols || !stageable(format) || format != z.format ||
      !stageable(out.format) || !stageable(gate_format) || gate_format != b.format) {
    return false;
  }
  const PendingNorm& norm = half.in.norm;
  float* conv_out = scratch_f32(kSlotConv, qkv.rows);
  float *decay = scratch_f32(kSlotGdnG, nv), *beta = scratch_f32(kSlotGdnBeta, nv), *squares = scratch_f32(kSlotGdnCore, nv * (D / kGdnTokenColumns));
  TokenRowsArgs in{};
  in.x = residual_in_one_piece(norm.x.data);
  in.norm_weight = norm.weight;
  in.eps = norm.eps;
  in.k = static_cast<int>(qkv.cols);
  in.weights[0] = layer_weight(qkv);
  in.weights[1] = layer_weight(z);
  in.out[1] = outs[1].out;
  in.first_row[1] = static_cast<int>(qkv.rows);
  in.rows = static_cast<int>(qkv.rows + z.rows);
  in.segments = 2;
  in.conv_weight = weights.conv;
  in.conv_out = conv_out;
  in.sequence = device_sequences();
  in.layer = half.layer;
  in.channels = static_cast<int>(qkv.rows);
  in.a = layer_weight(a);
  in.b = layer_weight(b);
  in.gate_format = gate_format == "q8_0" ? kGateQ8_0 : kGateQ4_0;
  in.heads = nv;
  in.dt_bias = weights.dt_bias;
  in.neg_exp_a = weights.neg_exp_a;
  in.decay = decay;
  in.beta = beta;
  TokenRowsArgs last{};
  last.x = half.out.data;
  last.k = static_cast<int>(out.cols);
  last.head_squares = squares;
  last.head_shift = std::countr_zero(static_cast<unsigned>(D / 4));
  last.head_parts = D / kGdnTokenColumns;
  last.inverse_head = 1.0f / static_cast<float>(D);
  last.head_eps = weights.eps;
  last.weights[0] = layer_weight(out);
  last.rows = static_cast<int>(out.rows);
  last.segments = 1;
  last.residual = norm.x.data;
  last.residual_from = in.x;
  const auto first_rows = plan_token_rows(in, format), last_rows = plan_token_rows(last, out.format);
  if (!first_rows || !last_rows) return false;
  launch(*first_rows);
  GdnTokenArgs args{};
  args.conv_out = conv_out;
  args.decay = decay;
  args.beta = beta;
  args.z = outs[1].out;
  args.norm = weights.norm;
  args.out = half.out.data;
  args.squares = squares;
  args.sequence = device_sequences();
  args.layer = half.layer;
  args.num_k_heads = nk;
  args.num_v_heads = nv;
  args.tiled = weights.v_heads_tiled ? 1 : 0;
  const std::string kernel = fmt::format("gdn_token_{}", D);
  device_->launch(kernel.c_str(), {static_cast<unsigned>(nv * (D / kGdnTokenColumns))}, {kGdnTokenThreads}, 0, args);
  launch(*last_rows);
  residual_.reset();
  return true;
}

bool CudaBackend::token_experts(ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out) {
  if (!collecting_ || x.rows != 1 || !pending_norm_ || pending_norm_->out != x.data || projections_ || half_) return false;
  const CudaWeight &router = cuda_weight(weights.router), &gate = cuda_weight(weights.gate), &up = cuda_weight(weights.up),
                   &down = cuda_weight(weights.down);
  const auto alike = [](const CudaWeight& a, const CudaWeight& b) {
    return std::string_view(a.format) == b.format && a.rows == b.rows && a.cols == b.cols;
  };
  const int chosen = weights.top_k, slots = chosen + (weights.shared_gate ? 1 : 0), experts = static_cast<int>(router.rows);
  const int inner = static_cast<int>(gate.rows), hidden = static_cast<int>(x.cols), groups = inner / 32;
  const std::string_view format = gate.format;
  if (chosen > kExpertMaxChosen || chosen > experts || !takes_row(hidden) || inner % 32 != 0 || groups < 3 || groups > 32 || !stageable(format) ||
      !alike(gate, up) || std::string_view(down.format) != format || down.cols != inner || down.rows != hidden ||
      std::string_view(router.format) != "f32") {
    return false;
  }
  if (weights.shared_gate &&
      !(alike(gate, cuda_weight(weights.shared_gate)) && alike(up, cuda_weight(weights.shared_up)) &&
        alike(down, cuda_weight(weights.shared_down)) && std::string_view(cuda_weight(weights.shared_router).format) == "f32")) {
    return false;
  }
  const int multiprocessors = device_->info().multiprocessors, padded = (experts + 15) / 16 * 16;
  const std::int64_t choice_bytes = 4 * padded + 2 * 4 * kExpertMaxChosen;
  // A warp takes two inner values at a time: as many warps as it takes to do them all at once.
  const int units = slots * inner / 2;
  const std::int64_t fixed = choice_bytes + 4 * kExpertSquares + int8_row_bytes(hidden);
  const auto room = static_cast<int>((static_cast<std::int64_t>(device_->info().shared_bytes) - fixed) / (4 * staged_row_bytes(format, hidden)));
  const int most = std::min(kExpertThreads / 32, room), least = (hidden / 8 + 31) / 32;  // two quads of x a thread at most
  const int warps = std::clamp((units + multiprocessors - 1) / multiprocessors, std::min(least, most), most);
  // And of `down` each takes rows of one expert.
  const int shift = std::countr_zero(std::bit_ceil(static_cast<unsigned>(groups))), slot_warps = kExpertThreads / 32 / slots;
  if (most < least || slot_warps < 1) return false;

  const PendingNorm norm = *pending_norm_;
  for (PendingGemv& gemv : pending_gemvs_) launch_gemv(gemv);
  pending_gemvs_.clear();
  pending_norm_.reset();
  float* logits = scratch_f32(kSlotRouter, experts + 1);
  float* hidden_values = scratch_f32(kSlotGate, static_cast<std::int64_t>(slots) * inner);
  RouterArgs route{};
  route.x = residual_in_one_piece(norm.x.data);
  route.norm_weight = norm.weight;
  route.router = static_cast<const float*>(router.data);
  if (weights.shared_gate) route.shared = static_cast<const float*>(cuda_weight(weights.shared_router).data);
  route.logits = logits;
  route.k = hidden;
  route.experts = experts;
  route.inverse_k = 1.0f / static_cast<float>(hidden);
  route.eps = norm.eps;
  device_->launch("router_logits", {static_cast<unsigned>(experts + slots - chosen)}, {kRouterThreads}, 0, route);

  ExpertHiddenArgs first{};
  first.x = route.x;
  first.norm_weight = norm.weight;
  first.logits = logits;
  first.gate = layer_weight(gate);
  first.up = layer_weight(up);
  ExpertSumArgs sum{};
  sum.hidden = hidden_values;
  sum.logits = logits;
  sum.down = layer_weight(down);
  if (weights.shared_gate) {
    first.shared_gate = layer_weight(cuda_weight(weights.shared_gate));
    first.shared_up = layer_weight(cuda_weight(weights.shared_up));
    sum.shared = layer_weight(cuda_weight(weights.shared_down));
  }
  first.hidden = hidden_values;
  first.k = hidden;
  first.groups = hidden / 32;
  first.experts = sum.experts = experts;
  first.padded = sum.padded = padded;
  first.chosen = sum.chosen = chosen;
  first.slots = sum.slots = slots;
  first.inner = sum.inner = inner;
  first.units = units;
  first.inverse_k = route.inverse_k;
  first.eps = norm.eps;
  const int blocks = std::min((units + warps - 1) / warps, multiprocessors);
  first.turns = (units + warps * blocks - 1) / (warps * blocks);
  const std::string kernel = fmt::format("expert_hidden_{}", format);
  device_->launch(kernel.c_str(), {static_cast<unsigned>(blocks)}, {static_cast<unsigned>(32 * warps)},
                  static_cast<std::size_t>(fixed + warps * 4 * staged_row_bytes(format, hidden)), first);

  sum.groups = groups;
  sum.rows = hidden;
  sum.slot_warps = slot_warps;
  sum.lanes_shift = shift;
  PendingGemv& pending = pending_gemvs_.emplace_back();
  pending.format = down.format;
  pending.experts = sum;
  pending.args.m = 1;
  pending.args.segment_count = 1;
  pending.args.segments[0].out = out.data;
  pending.args.segments[0].rows = hidden;
  return true;
}

void CudaBackend::launch_expert_sum(const PendingGemv& gemv) {
  ExpertSumArgs args = *gemv.experts;
  args.residual = gemv.args.residual;
  args.residual_from = gemv.args.residual_from ? gemv.args.residual_from : args.residual;
  args.out = args.residual ? nullptr : gemv.args.segments[0].out;
  const int rows_of_block = args.slot_warps * kExpertPasses * (32 >> args.lanes_shift), warps = args.slots * args.slot_warps;
  const std::int64_t shared = 4 * args.padded + 2 * 4 * kExpertMaxChosen + 4 * args.slots * rows_of_block + int8_row_bytes(args.slots * args.inner);
  const std::string kernel = fmt::format("expert_sum_{}", gemv.format);
  device_->launch(kernel.c_str(), {static_cast<unsigned>((args.rows + rows_of_block - 1) / rows_of_block)}, {static_cast<unsigned>(32 * warps)},
                  static_cast<std::size_t>(shared), args);
}

}  // namespace heirloom::cuda
