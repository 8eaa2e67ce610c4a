// Half a layer as one kernel, for a step of one token (kernels/layer_input.h). Calls of ops are collected until they make up a Gated
// DeltaNet with its projections, a dense FFN, or the end of an attention layer, up to the addition to the residual stream; where shapes or weight types do not allow it,
// or another op comes between, the collected calls are made one by one. The residual stream may then lie in parts (Residual), which the
// next such kernel adds; settle_residual() puts it together for everyone else.
#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/layer_weight.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

constexpr int kWarps = kLayerThreads / 32, kMailBytes = 32;

std::string_view format_of(const ops::Weight* weight) { return cuda_weight(weight).format; }
bool takes_hidden(std::int64_t hidden) { return hidden % 256 == 0 && hidden <= kLayerMaxHidden; }
int shift_for(std::int64_t groups) { return std::countr_zero(std::bit_ceil(static_cast<unsigned>(groups))); }
int gate_format(std::string_view format) {
  return format == "q8_0" ? kGateQ8_0 : format == "q4_0" ? kGateQ4_0 : format == "f32" ? kGateF32 : format == "f16" ? kGateF16
       : format == "bf16" ? kGateBf16 : -1;
}

}  // namespace

bool CudaBackend::collect(ops::Matrix x, std::span<const ops::LinearOut> outs) {
  if (!collecting_ || x.rows != 1 || std::ranges::any_of(outs, [](const ops::LinearOut& out) { return out.bias != nullptr; })) return false;
  if (half_ && half_->last == nullptr && outs.size() == 1 && x.data == half_->out.data) {
    half_->last = &cuda_weight(outs[0].weight);
    half_->delta = outs[0].out;
    return true;
  }
  if (half_ || projections_ || !pending_norm_ || (pending_norm_->out != x.data && pending_norm_->out_copy != x.data)) return false;
  // A residual add that waits feeds the norm.
  for (PendingGemv& gemv : pending_gemvs_) launch_gemv(gemv);
  pending_gemvs_.clear();
  projections_ = PendingProjections{*pending_norm_, x, {outs.begin(), outs.end()}};
  pending_norm_.reset();
  return true;
}

bool CudaBackend::collect_gdn(int layer, const ops::GdnWeights& weights, ops::Matrix qkv, ops::Matrix z, ops::Matrix a, ops::Matrix b,
                              ops::Matrix out) {
  if (!projections_ || projections_->outs.size() != 4) return false;
  const float* wanted[] = {qkv.data, z.data, a.data, b.data};
  for (std::size_t i = 0; i < 4; ++i) {
    if (projections_->outs[i].out != wanted[i]) return false;
  }
  half_ = PendingHalf{std::move(*projections_), layer, weights, std::nullopt, out, nullptr, nullptr};
  projections_.reset();
  return true;
}

bool CudaBackend::collect_ffn(ops::Matrix gate, ops::Matrix up, ops::Matrix out) {
  if (!projections_ || projections_->outs.size() != 2 || projections_->outs[0].out != gate.data || projections_->outs[1].out != up.data) {
    return false;
  }
  half_ = PendingHalf{std::move(*projections_), 0, std::nullopt, std::nullopt, out, nullptr, nullptr};
  projections_.reset();
  return true;
}

// Attention of one token in two kernels, the second with the output projection (attention_step.h, attention_out.h). The first is launched
// here, the second waits for its weight.
bool CudaBackend::collect_attention(int layer, const ops::AttentionWeights& weights, ops::Matrix q_gate, ops::Matrix k, ops::Matrix v,
                                    const float* rope_cos, const float* rope_sin, ops::Matrix out) {
  if (!projections_ || projections_->outs.size() != 3) return false;
  const float* wanted[] = {q_gate.data, k.data, v.data};
  for (std::size_t i = 0; i < 3; ++i) {
    if (projections_->outs[i].out != wanted[i]) return false;
  }
  const int nh = weights.num_q_heads, nkv = weights.num_kv_heads, D = weights.head_dim, of_lane = D / 32, half = weights.rotary_dim / 2;
  const int columns = nh * D, group = nh / nkv, blocks = (group + 3) / 4;
  const std::size_t shared = static_cast<std::size_t>(2 * 64 * D * 2 + D * 16 + 64 * 16 + 2 * 8 * 16 + kMailBytes);
  // A value and the one that it turns with lie in lanes whose numbers differ in one bit.
  if ((D != 64 && D != 128 && D != 256) || kv_type() == kKvF32 || half % of_lane != 0 || !std::has_single_bit(static_cast<unsigned>(half / of_lane)) ||
      columns % kAttentionOutColumns != 0 || columns / kAttentionOutColumns > kLayerParts || shared > device_->info().shared_bytes) {
    return false;
  }
  PendingProjections in = *projections_;
  flush_keeping_residual();
  AttentionStepArgs args{};
  args.q_gate = q_gate.data;
  args.k = k.data;
  args.v = v.data;
  args.q_weight = weights.q_norm;
  args.k_weight = weights.k_norm;
  args.rope_cos = rope_cos;
  args.rope_sin = rope_sin;
  args.partial = scratch_f32(kSlotPartial, static_cast<std::int64_t>(columns) * splits_);
  args.partial_stat = scratch_f32(kSlotStat, static_cast<std::int64_t>(nh) * splits_ * 2);
  args.sequence = device_sequences();
  args.layer = layer;
  args.num_q_heads = nh;
  args.num_kv_heads = nkv;
  args.rotary_dim = weights.rotary_dim;
  args.splits = static_cast<int>(splits_);
  args.scale = 1.0f / std::sqrt(static_cast<float>(D));
  args.eps = weights.eps;
  const std::string kernel = fmt::format("attention_step_{}_{}", kv_type() == kKvF16 ? "f16" : "bf16", D);
  device_->launch(kernel.c_str(), {static_cast<unsigned>(splits_), static_cast<unsigned>(nkv * blocks)}, {256}, shared, args);
  AttentionOutArgs rest{};
  rest.q_gate = q_gate.data;
  rest.partial = args.partial;
  rest.partial_stat = args.partial_stat;
  rest.sequence = args.sequence;
  rest.columns = columns;
  rest.head_dim = D;
  rest.splits = args.splits;
  half_ = PendingHalf{std::move(in), layer, std::nullopt, rest, out, nullptr, nullptr};
  return true;
}

// Makes the collected calls one by one.
void CudaBackend::give_up_collecting() {
  if (projections_) {
    const PendingProjections pending = std::move(*projections_);
    projections_.reset();
    if (launch_input_rows(pending)) return;
    pending_norm_ = pending.norm;
    linear_few_rows(pending.x, pending.outs);
    return;
  }
  if (!half_) return;
  const PendingHalf half = std::move(*half_);
  half_.reset();
  const auto make_last = [&] {
    if (!half.last) return;
    const ops::LinearOut last{half.last, half.delta};
    linear_few_rows({half.out.data, 1, half.last->cols}, {&last, 1});
  };
  if (half.attention) {
    combine_attention(*half.attention, half.out);
    make_last();
    return;
  }
  pending_norm_ = half.in.norm;
  linear_few_rows(half.in.x, half.in.outs);
  const auto matrix = [&](std::size_t i) { return ops::Matrix{half.in.outs[i].out, 1, half.in.outs[i].weight->rows}; };
  const bool collecting = std::exchange(collecting_, false);
  if (half.gdn) gdn_mixer(half.layer, *half.gdn, matrix(0), matrix(1), matrix(2), matrix(3), half.out, nullptr);
  else swiglu(matrix(0), matrix(1), half.out);
  make_last();
  collecting_ = collecting;
}

bool CudaBackend::launch_half(ops::Matrix residual, const float* delta) {
  if (!half_ || half_->last == nullptr || half_->delta != delta || half_->in.norm.x.data != residual.data) return false;
  if (!(half_->gdn ? launch_gdn_layer(*half_) || launch_gdn_token(*half_) : half_->attention ? launch_attention_out(*half_) : launch_ffn_layer(*half_))) {
    give_up_collecting();
    return false;
  }
  half_.reset();
  return true;
}

LayerInput CudaBackend::layer_input(const PendingNorm& norm) {
  const std::int64_t hidden = norm.x.cols;
  LayerInput in{};
  in.x = norm.x.data;
  if (residual_ && residual_->of == norm.x.data) {
    in.x = residual_->base;
    in.partials = residual_->partials;
    in.parts = residual_->parts;
  }
  in.norm_weight = norm.weight;
  in.hidden = static_cast<int>(hidden);
  in.groups = static_cast<int>(hidden / 32);
  in.inverse_hidden = 1.0f / static_cast<float>(hidden);
  in.eps = norm.eps;
  turn_ ^= 1;
  if (in.parts > 0) in.sum = scratch_f32(turn_ ? kSlotSum1 : kSlotSum0, hidden);
  return in;
}

float* CudaBackend::layer_partials(std::int64_t hidden) { return scratch_f32(turn_ ? kSlotPartials1 : kSlotPartials0, kLayerParts * hidden); }

void CudaBackend::settle_residual() {
  if (!residual_) return;
  const Residual residual = *residual_;
  residual_.reset();
  device_->launch("residual_sum", {static_cast<unsigned>((residual.width + 255) / 256)}, {256}, 0, residual.of, residual.base,
                  residual.partials, residual.parts, residual.width);
}

bool CudaBackend::launch_gdn_layer(const PendingHalf& half) {
  const ops::GdnWeights& weights = *half.gdn;
  const auto& outs = half.in.outs;
  const CudaWeight &qkv = cuda_weight(outs[0].weight), &z = cuda_weight(outs[1].weight), &a = cuda_weight(outs[2].weight),
                   &b = cuda_weight(outs[3].weight);
  const std::int64_t hidden = half.in.x.cols;
  const int D = weights.head_k_dim, heads = weights.num_k_heads, S = D / kLayerCluster;
  const std::string_view format = qkv.format;
  const int gates = gate_format(a.format);
  if ((D != 64 && D != 128) || weights.head_v_dim != D || weights.num_v_heads != heads || heads > kLayerParts || !takes_hidden(hidden) ||
      !stageable(format) || format != z.format || format != half.last->format || std::string_view(a.format) != b.format || gates < 0 ||
      half.last->rows != hidden || plan_->shape.conv_kernel != 4) {
    return false;
  }
  const std::int64_t floats = 2 * D + 2 * S + D + D / 4 + D * S + 3 * (hidden / 32);
  const std::int64_t shared = kMailBytes + 4 * floats + int8_row_bytes(hidden) + int8_row_bytes(D) + 4 * S * staged_row_bytes(format, hidden);
  if (static_cast<std::size_t>(shared) > device_->info().shared_bytes) return false;
  GdnLayerArgs args{};
  args.in = layer_input(half.in.norm);
  args.qkv = layer_weight(qkv);
  args.z = layer_weight(z);
  args.a = layer_weight(a);
  args.b = layer_weight(b);
  args.out = layer_weight(*half.last);
  args.gate_format = gates;
  args.conv_weight = weights.conv;
  args.dt_bias = weights.dt_bias;
  args.neg_exp_a = weights.neg_exp_a;
  args.norm = weights.norm;
  args.partials = layer_partials(hidden);
  args.sequence = device_sequences();
  args.layer = half.layer;
  args.heads = heads;
  args.out_lanes_shift = shift_for(D / 32);
  args.eps = weights.eps;
  const std::string kernel = fmt::format("gdn_layer_{}_{}", format, D);
  device_->launch_clusters(kernel.c_str(), {static_cast<unsigned>(kLayerCluster * heads)}, {kLayerThreads}, kLayerCluster,
                           static_cast<std::size_t>(shared), args);
  layer_done(half.in.norm, args.in, args.partials, heads);
  return true;
}

bool CudaBackend::launch_ffn_layer(const PendingHalf& half) {
  const CudaWeight &gate = cuda_weight(half.in.outs[0].weight), &up = cuda_weight(half.in.outs[1].weight), &down = *half.last;
  const std::int64_t hidden = half.in.x.cols, inner = gate.rows;
  const std::string_view format = gate.format;
  int clusters = kLayerParts;  // as many as share the inner dimension in groups of 32
  while (clusters > 1 && inner % (32 * clusters) != 0) --clusters;
  const std::int64_t width = inner / clusters;
  if (!takes_hidden(hidden) || !stageable(format) || format != up.format || format != down.format || up.rows != inner || down.cols != inner ||
      down.rows != hidden || inner % 32 != 0 || width > 32 * 32) {
    return false;
  }
  const std::int64_t shared = kMailBytes + 4 * (width + hidden / 32) + int8_row_bytes(hidden) + int8_row_bytes(width) +
                              2 * (width / kLayerCluster) * staged_row_bytes(format, hidden);
  if (static_cast<std::size_t>(shared) > device_->info().shared_bytes) return false;
  FfnLayerArgs args{};
  args.in = layer_input(half.in.norm);
  args.gate = layer_weight(gate);
  args.up = layer_weight(up);
  args.down = layer_weight(down);
  args.partials = layer_partials(hidden);
  args.inner = static_cast<int>(inner);
  args.width = static_cast<int>(width);
  args.out_lanes_shift = shift_for(width / 32);
  const std::string kernel = fmt::format("ffn_layer_{}", format);
  device_->launch_clusters(kernel.c_str(), {static_cast<unsigned>(kLayerCluster * clusters)}, {kLayerThreads}, kLayerCluster,
                           static_cast<std::size_t>(shared), args);
  layer_done(half.in.norm, args.in, args.partials, clusters);
  return true;
}

void CudaBackend::combine_attention(const AttentionOutArgs& from, ops::Matrix out) {
  AttentionDecodeArgs args{};
  args.partial = const_cast<float*>(from.partial);
  args.partial_stat = const_cast<float*>(from.partial_stat);
  args.q_gate = from.q_gate;
  args.out = out.data;
  args.sequences = from.sequence;
  args.row_sequence = device_row_sequence();
  args.num_q_heads = from.columns / from.head_dim;
  args.head_dim = from.head_dim;
  args.splits = from.splits;
  const int groups = 256 / (from.head_dim / 4);
  device_->launch("attention_combine", {static_cast<unsigned>(args.num_q_heads), 1}, {256},
                  static_cast<std::size_t>(groups * (from.head_dim + 4)) * 4, args);
}

bool CudaBackend::launch_attention_out(const PendingHalf& half) {
  const CudaWeight& out = *half.last;
  const PendingNorm& norm = half.in.norm;
  AttentionOutArgs args = *half.attention;
  const std::int64_t hidden = norm.x.cols;
  const int clusters = args.columns / kAttentionOutColumns;
  if (!takes_hidden(hidden) || !stageable(out.format) || out.rows != hidden || out.cols != args.columns) return false;
  if (residual_ && residual_->parts > 0) settle_residual();
  args.weight = layer_weight(out);
  args.partials = layer_partials(hidden);
  args.hidden = static_cast<int>(hidden);
  const std::int64_t shared = kMailBytes + int8_row_bytes(kAttentionOutColumns) + kWarps * (8 * 16 + 8);
  const std::string kernel = fmt::format("attention_out_{}", out.format);
  device_->launch_clusters(kernel.c_str(), {static_cast<unsigned>(kLayerCluster * clusters)}, {kLayerThreads}, kLayerCluster,
                           static_cast<std::size_t>(shared), args);
  const float* base = residual_ && residual_->of == norm.x.data ? residual_->base : norm.x.data;
  residual_ = Residual{norm.x.data, base, args.partials, clusters, args.hidden};
  return true;
}

bool CudaBackend::launch_input_rows(const PendingProjections& pending) {
  constexpr int kBlocks = kLayerCluster * kLayerParts;
  const std::int64_t hidden = pending.x.cols;
  const std::string_view format = format_of(pending.outs[0].weight);
  // Of a stream in one piece the usual products are as fast.
  if (!residual_ || residual_->of != pending.norm.x.data) return false;
  if (!takes_hidden(hidden) || !stageable(format) || pending.outs.size() > kInputRowsSegments || pending.norm.out != pending.x.data) {
    return false;
  }
  InputRowsArgs args{};
  for (const ops::LinearOut& out : pending.outs) {
    if (format_of(out.weight) != format) return false;
    const int i = args.segments++;
    args.weights[i] = layer_weight(cuda_weight(out.weight));
    args.out[i] = out.out;
    args.first_row[i] = args.rows;
    args.rows += static_cast<int>(out.weight->rows);
  }
  args.rows_of_block = (args.rows + 4 * kBlocks - 1) / (4 * kBlocks) * 4;
  const int quads = args.rows_of_block / 4, steps = static_cast<int>(hidden / 32 / 32);
  while (quads << args.split_shift < kWarps && 1 << args.split_shift < steps) ++args.split_shift;
  const std::int64_t shared = kMailBytes + 4 * (4 * kWarps + hidden / 32) + int8_row_bytes(hidden) +
                              args.rows_of_block * staged_row_bytes(format, hidden);
  if (static_cast<std::size_t>(shared) > device_->info().shared_bytes) return false;
  args.in = layer_input(pending.norm);
  args.normed = pending.norm.out;
  args.normed_copy = pending.norm.out_copy;
  const int blocks = (args.rows + args.rows_of_block - 1) / args.rows_of_block;
  const std::string kernel = fmt::format("input_rows_{}", format);
  device_->launch_clusters(kernel.c_str(), {static_cast<unsigned>((blocks + kLayerCluster - 1) / kLayerCluster * kLayerCluster)}, {kLayerThreads},
                           kLayerCluster, static_cast<std::size_t>(shared), args);
  if (args.in.sum) layer_done(pending.norm, args.in, nullptr, 0);
  return true;
}

void CudaBackend::layer_done(const PendingNorm& norm, const LayerInput& in, float* partials, int parts) {
  residual_ = Residual{norm.x.data, in.sum ? in.sum : in.x, partials, parts, in.hidden};
}

}  // namespace heirloom::cuda
