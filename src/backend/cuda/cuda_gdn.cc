// Gated DeltaNet between its projections: decode is one kernel a layer (plus the convolution, which hides in the projection's
// GEMV); longer sequences go through the chunked form.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/launch_grids.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

constexpr int kGdnMmaDim = 128;

}  // namespace

void CudaBackend::gdn_mixer(int layer, const ops::GdnWeights& weights, ops::Matrix qkv, ops::Matrix z, ops::Matrix a,
                            ops::Matrix b, ops::Matrix out, const ops::GdnTaps* taps) {
  const int D = weights.head_k_dim, nk = weights.num_k_heads, nv = weights.num_v_heads;
  if (weights.head_v_dim != D || (D != 32 && D != 64 && D != 128) || plan_->shape.conv_kernel != 4) {
    fail(ErrorKind::bad_file, "Gated DeltaNet heads of {} by {} with a convolution of {}: the GPU kernels need equal dims of 32, 64 "
         "or 128 and 4 taps; use --device cpu", D, weights.head_v_dim, plan_->shape.conv_kernel);
  }
  if (!taps && collect_gdn(layer, weights, qkv, z, a, b, out)) return;
  give_up_collecting();
  const int rows = static_cast<int>(qkv.rows), channels = static_cast<int>(qkv.cols);
  const auto sequences = static_cast<unsigned>(plan_->sequences.size());
  int longest = 0;
  for (const ops::SequenceStep& s : plan_->sequences) longest = std::max(longest, s.num_rows);
  const bool chunked = longest > options_.gdn_recurrent_rows;
  const ops::GdnTaps none;
  const ops::GdnTaps& tap = taps ? *taps : none;

  // Where products may round to BF16, those of the delta rule may round to TF32.
  const bool tensor_cores = chunked && D == kGdnMmaDim && gemm_ == GemmType::bf16 && device_->tier_of("gdn_mma_walk_128") >= 80;
  const bool some_recurrent = std::ranges::any_of(
      plan_->sequences, [&](const ops::SequenceStep& s) { return s.num_rows <= options_.gdn_recurrent_rows; });
  // Values of a row of each input, from one row to the next.
  struct Strides {
    int qkv, z, gates;
  } stride{channels, nv * D, nv};
  const float* const outs[] = {qkv.data, z.data, a.data, b.data};
  if (float* joined = chunked && !taps && !some_recurrent && out.data != z.data ? joined_products(outs) : nullptr) {
    stride.qkv = stride.z = stride.gates = channels + nv * D + 2 * nv;
    qkv.data = joined;
    z.data = joined + channels;
    a.data = z.data + nv * D;
    b.data = a.data + nv;
  }
  const bool one_pass = tensor_cores && !taps && !some_recurrent;  // convolution, norms and gates in one kernel
  const std::int64_t heads = static_cast<std::int64_t>(rows) * nv;
  float* core = tap.core_out;
  float* conv_out = tap.conv_out ? tap.conv_out : scratch_f32(kSlotConv, qkv.rows * qkv.cols);
  GdnChunkArgs chunk{};
  chunk.conv_out = conv_out;
  if (chunked || tap.q_l2norm) {
    chunk.q = tap.q_l2norm ? tap.q_l2norm : scratch_f32(kSlotGdnQ, static_cast<std::int64_t>(rows) * nk * D);
    chunk.k = tap.k_l2norm ? tap.k_l2norm : scratch_f32(kSlotGdnK, static_cast<std::int64_t>(rows) * nk * D);
    chunk.g = tap.g ? tap.g : scratch_f32(kSlotGdnG, heads);
    chunk.beta = tap.beta ? tap.beta : scratch_f32(kSlotGdnBeta, heads);
  }
  const auto writable = [](const float* p) { return const_cast<float*>(p); };  // the same memory, which later kernels only read
  const auto across = static_cast<unsigned>((channels + 127) / 128), row_groups = static_cast<unsigned>((rows + 15) / 16);
  PendingGemv* gemv = pending_with_out(qkv.data);
  if (gemv != nullptr && one_row_each() && gemv->args.m == rows && gemv->args.segments[0].rows == channels) {
    gemv->args.conv_weight = weights.conv;
    gemv->args.conv_out = conv_out;
    gemv->args.sequences = device_sequences();
    gemv->args.layer = layer;
    flush_keeping_residual();
  } else {
    flush_keeping_residual();
    if (one_pass) {
      device_->launch("gdn_mma_inputs_128", {across, row_groups}, {128}, 0, writable(chunk.q), writable(chunk.k), conv_out,
                      writable(chunk.g), writable(chunk.beta), static_cast<const float*>(qkv.data), weights.conv,
                      static_cast<const float*>(a.data), static_cast<const float*>(b.data), weights.dt_bias, weights.neg_exp_a,
                      device_sequences(), device_row_sequence(), layer, nk, nv, rows);
    } else {
      device_->launch("gdn_conv", {across, row_groups}, {128}, 0, conv_out, static_cast<const float*>(qkv.data), weights.conv,
                      device_sequences(), device_row_sequence(), layer, rows, channels, stride.qkv);
    }
    device_->launch("gdn_conv_state", {across, sequences}, {128}, 0, static_cast<const float*>(qkv.data), device_sequences(),
                    layer, channels, stride.qkv);
  }
  if (chunk.q != nullptr && !one_pass) {
    const std::string kernel = fmt::format("gdn_prepare_{}", D);
    device_->launch(kernel.c_str(), {static_cast<unsigned>(nk), row_grid(rows)},
                    {static_cast<unsigned>(D)}, 0, writable(chunk.q), writable(chunk.k), writable(chunk.g), writable(chunk.beta),
                    static_cast<const float*>(conv_out), static_cast<const float*>(a.data), static_cast<const float*>(b.data),
                    weights.dt_bias, weights.neg_exp_a, nk, nv, rows, stride.gates);
  }
  int chunks = 0;
  for (const ops::SequenceStep& s : plan_->sequences) {
    chunks = std::max(chunks, (s.past_tokens + s.num_rows + kGdnChunk - 1) / kGdnChunk - s.past_tokens / kGdnChunk);
  }
  if (tensor_cores) {
    gdn_chunks_on_tensor_cores(layer, weights, chunk, z, out, core, chunks);
  } else if (chunked) {
    if (!core) core = scratch_f32(kSlotGdnCore, heads * D);
    chunk.u = scratch_f32(kSlotGdnU, heads * D);
    chunk.w = scratch_f32(kSlotGdnW, heads * D);
    chunk.attention = scratch_f32(kSlotGdnAttention, heads * kGdnChunk);
    chunk.cumulative = scratch_f32(kSlotGdnCumulative, heads);
    chunk.core_out = core;
    const std::int64_t slots = rows / kGdnChunk + 2 * static_cast<std::int64_t>(sequences) + 1;
    chunk.states = scratch_f32(kSlotGdnStates, slots * nv * D * D);
    chunk.sequences = device_sequences();
    chunk.layer = layer;
    chunk.num_k_heads = nk;
    chunk.num_v_heads = nv;
    chunk.tiled = weights.v_heads_tiled ? 1 : 0;
    chunk.recurrent_rows = options_.gdn_recurrent_rows;
    const bool captures = std::ranges::any_of(plan_->sequences, [](const ops::SequenceStep& s) { return !s.captures.empty(); });
    const std::string intra = fmt::format("gdn_chunk_intra_{}", D), scan = fmt::format("gdn_chunk_{}_{}", captures ? "capture" : "scan", D),
                      output = fmt::format("gdn_chunk_output_{}", D),
                      norm = fmt::format("gdn_gated_norm_{}", D);
    device_->launch(intra.c_str(), {static_cast<unsigned>(chunks), static_cast<unsigned>(nv), sequences}, {256}, 0, chunk);
    device_->launch(scan.c_str(), {static_cast<unsigned>(D / 16), static_cast<unsigned>(nv), sequences}, {256}, 0, chunk);
    device_->launch(output.c_str(), {static_cast<unsigned>(chunks), static_cast<unsigned>(nv), sequences}, {256}, 0, chunk);
    for (const ops::SequenceStep& s : plan_->sequences) {
      if (s.num_rows <= options_.gdn_recurrent_rows) continue;
      const std::int64_t at = static_cast<std::int64_t>(s.first_row) * nv * D;
      unsigned short* twin = sequences == 1 ? bf16_twin(out) : nullptr;
      device_->launch(norm.c_str(), {static_cast<unsigned>(nv), row_grid(s.num_rows)},
                      {static_cast<unsigned>(D)}, 0, out.data + at, twin, static_cast<const float*>(core + at),
                      static_cast<const float*>(z.data + static_cast<std::int64_t>(s.first_row) * stride.z), weights.norm, nv, s.num_rows, stride.z, weights.eps);
    }
  }
  if (some_recurrent) {
    GdnArgs args{};
    args.conv_out = conv_out;
    args.a = a.data;
    args.b = b.data;
    args.z = z.data;
    args.dt_bias = weights.dt_bias;
    args.neg_exp_a = weights.neg_exp_a;
    args.norm = weights.norm;
    args.out = out.data;
    args.core_out = core;
    args.sequences = device_sequences();
    args.layer = layer;
    args.num_k_heads = nk;
    args.num_v_heads = nv;
    args.tiled = weights.v_heads_tiled ? 1 : 0;
    args.recurrent_rows = options_.gdn_recurrent_rows;
    args.eps = weights.eps;
    const std::string kernel = fmt::format("gdn_recurrent_{}", D);
    device_->launch(kernel.c_str(), {static_cast<unsigned>(nv), sequences}, {static_cast<unsigned>(4 * D)}, 0, args);
  }
}

}  // namespace heirloom::cuda
