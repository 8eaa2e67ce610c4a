// Softmax attention of language models: split over pages for few rows, by matrix products or as one kernel for long prompts.
#include <algorithm>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/attention_flash_args.h"
#include "backend/cuda/launch_grids.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

using u64 = unsigned long long;

// From this many rows of one sequence on, scores and outputs are matrix products.
constexpr int kGemmRows = 32;
// Rows of a prompt's scores that exist at once (what is right of their diagonal is work for nothing): the buffer is this by the context,
// never the square of the context. Long contexts take fewer rows of several heads, so that the heads of a product share a call.
constexpr int kScoreRows = 512;

}  // namespace

void CudaBackend::attention_mixer(int layer, const ops::AttentionWeights& weights, ops::Matrix q_gate, ops::Matrix k,
                                  ops::Matrix v, const float* rope_cos, const float* rope_sin, ops::Matrix out,
                                  const ops::AttentionTaps* taps) {
  if (!taps && collect_attention(layer, weights, q_gate, k, v, rope_cos, rope_sin, out)) return;
  flush_keeping_residual();
  const int rows = static_cast<int>(q_gate.rows), nh = weights.num_q_heads, nkv = weights.num_kv_heads, hd = weights.head_dim;
  if (hd % 32 != 0 || hd > 512 || (hd < 256 && 256 % hd != 0)) {
    fail(ErrorKind::bad_file, "attention heads of {} dimensions: the GPU kernels need 32, 64, 128, 256 or 512; use --device cpu", hd);
  }
  const ops::AttentionTaps none;
  const ops::AttentionTaps& tap = taps ? *taps : none;
  AttentionPrepareArgs prepare{};
  prepare.q_gate = q_gate.data;
  prepare.k = k.data;
  prepare.v = v.data;
  prepare.q_weight = weights.q_norm;
  prepare.k_weight = weights.k_norm;
  prepare.rope_cos = rope_cos;
  prepare.rope_sin = rope_sin;
  prepare.q_out = tap.q_rope ? tap.q_rope : scratch_f32(kSlotQ, static_cast<std::int64_t>(rows) * nh * hd);
  prepare.tap_q_norm = tap.q_norm;
  prepare.tap_k_norm = tap.k_norm;
  prepare.tap_k_rope = tap.k_rope;
  prepare.tap_gate = tap.gate;
  prepare.sequences = device_sequences();
  prepare.row_sequence = device_row_sequence();
  prepare.layer = layer;
  prepare.rows = rows;
  prepare.num_q_heads = nh;
  prepare.num_kv_heads = nkv;
  prepare.head_dim = hd;
  prepare.rotary_dim = weights.rotary_dim;
  prepare.kv_type = kv_type();
  prepare.eps = weights.eps;
  device_->launch("attention_prepare", {static_cast<unsigned>(nh + 2 * nkv), row_grid(rows)}, {128},
                  static_cast<std::size_t>(hd) * 4, prepare);

  const int group = nh / nkv, per_block = group <= 4 ? 4 : 8;
  static constexpr const char* kKernels[3][2] = {{"attention_decode_f32_4", "attention_decode_f32_8"},
                                                 {"attention_decode_f16_4", "attention_decode_f16_8"},
                                                 {"attention_decode_bf16_4", "attention_decode_bf16_8"}};
  for (std::size_t i = 0; i < plan_->sequences.size();) {
    const ops::SequenceStep& s = plan_->sequences[i];
    if (s.num_rows >= kGemmRows && attention_flash(layer, weights, i, prepare.q_out, q_gate.data, out)) {
      ++i;
      continue;
    }
    if (s.num_rows >= kGemmRows) {
      attention_by_gemm(layer, weights, i, prepare.q_out, out.data);
      const std::int64_t at = static_cast<std::int64_t>(s.first_row) * nh * hd;
      const auto n = static_cast<u64>(s.num_rows) * static_cast<u64>(nh * hd);
      unsigned short* twin = plan_->sequences.size() == 1 ? bf16_twin(out) : nullptr;
      device_->launch("gate_multiply", {map_grid(n / 4)}, {256}, 0, out.data + at, twin, static_cast<const float*>(q_gate.data + 2 * at), n / 4, hd / 4);
      ++i;
      continue;
    }
    // Neighbouring short sequences share a launch.
    std::size_t end = i;
    while (end < plan_->sequences.size() && plan_->sequences[end].num_rows < kGemmRows) ++end;
    const int first = s.first_row, last = plan_->sequences[end - 1].first_row + plan_->sequences[end - 1].num_rows;
    AttentionDecodeArgs args{};
    args.sequences = device_sequences();
    args.layer = layer;
    args.num_q_heads = nh;
    args.num_kv_heads = nkv;
    args.head_dim = hd;
    args.splits = static_cast<int>(splits_);
    args.scale = 1.0f / std::sqrt(static_cast<float>(hd));
    // As many rows at once as 65535 blocks and a 64 MiB partial buffer take.
    const std::int64_t row_floats = static_cast<std::int64_t>(nh) * splits_ * hd;
    const int at_once = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{16} << 20) / row_floats, 1, 65535));
    args.partial = scratch_f32(kSlotPartial, std::min(at_once, last - first) * row_floats);
    args.partial_stat = scratch_f32(kSlotStat, static_cast<std::int64_t>(std::min(at_once, last - first)) * nh * splits_ * 2);
    for (int r = first; r < last; r += at_once) {
      const int n = std::min(at_once, last - r);
      args.first_row = r;
      args.q = prepare.q_out;
      args.q_gate = q_gate.data;
      args.out = out.data;
      args.row_sequence = device_row_sequence();
      const char* kernel = kKernels[kv_type()][per_block == 8];
      std::size_t shared = static_cast<std::size_t>(per_block) * static_cast<std::size_t>(hd + 5 * 64) * 4;
      const std::size_t page = 2 * 64 * (static_cast<std::size_t>(hd) * (kv_type() == 0 ? 4 : 2) + 16), fixed = 12 << 10;
      args.staged = device_->tier_of(kernel) >= 80 && shared + page + fixed <= device_->info().shared_bytes ? 1 : 0;
      if (args.staged) shared += page;
      device_->launch(kernel,
                      {static_cast<unsigned>(splits_), static_cast<unsigned>(nkv * ((group + per_block - 1) / per_block)),
                       static_cast<unsigned>(n)},
                      {256}, shared, args);
      const std::size_t groups = 256 / (static_cast<std::size_t>(hd) / 4);
      device_->launch("attention_combine", {static_cast<unsigned>(nh), static_cast<unsigned>(n)}, {256},
                      groups * static_cast<std::size_t>(hd + 4) * 4, args);
    }
    i = end;
  }
}

// False where it does not fit: heads of other than 256, FP32 products, a card without the instructions or the shared memory.
bool CudaBackend::attention_flash(int layer, const ops::AttentionWeights& weights, std::size_t sequence, const float* q,
                                  const float* q_gate, ops::Matrix out) {
  constexpr int kDim = 256;
  if (weights.head_dim != kDim || gemm_ != GemmType::bf16 || device_->tier_of("attention_flash_4") < 80) return false;
  const auto shared_bytes = [](int warps) { return static_cast<std::size_t>(16 * warps + 128) * 528; };
  const DeviceInfo& info = device_->info();
  const ops::SequenceStep& s = plan_->sequences[sequence];
  const int nh = weights.num_q_heads, nkv = weights.num_kv_heads, tokens = s.past_tokens + s.num_rows;
  const auto blocks = [&](int warps) { return (s.num_rows + 16 * warps - 1) / (16 * warps); };
  // Eight warps read keys half as often, as long as there is a block for every multiprocessor.
  const int warps = s.num_rows > 64 && blocks(8) * nh >= info.multiprocessors && info.shared_bytes >= shared_bytes(8) ? 8 : 4;
  if (info.shared_bytes < shared_bytes(warps)) return false;
  AttentionFlashArgs args{};
  args.kv_rows = (tokens + 63) / 64 * 64;
  const std::size_t head_values = static_cast<std::size_t>(args.kv_rows) * kDim;
  auto* keys = static_cast<unsigned short*>(scratch(kSlotKeys, head_values * static_cast<std::size_t>(nkv) * 2));
  auto* values = static_cast<unsigned short*>(scratch(kSlotValues, head_values * static_cast<std::size_t>(nkv) * 2));
  for (int kv_head = 0; kv_head < nkv; ++kv_head) {
    const std::size_t at = head_values * static_cast<std::size_t>(kv_head);
    device_->launch("kv_gather_bf16", {map_grid(head_values)}, {256}, 0, keys + at, values + at, device_sequences(),
                    static_cast<int>(sequence), layer, kv_head, nkv, kDim, tokens, args.kv_rows, kv_type());
  }
  const std::int64_t at = static_cast<std::int64_t>(s.first_row) * nh * kDim;
  args.q = q + at;
  args.k = keys;
  args.v = values;
  args.q_gate = q_gate + 2 * at;
  args.out = out.data + at;
  args.twin = plan_->sequences.size() == 1 ? bf16_twin(out) : nullptr;
  args.rows = s.num_rows;
  args.past = s.past_tokens;
  args.num_q_heads = nh;
  args.group = nh / nkv;
  args.scale_log2 = 1.44269504f / 16.0f;
  const std::string kernel = fmt::format("attention_flash_{}", warps);
  device_->launch(kernel.c_str(), {static_cast<unsigned>(blocks(warps)), static_cast<unsigned>(nh)}, {static_cast<unsigned>(32 * warps)},
                  shared_bytes(warps), args);
  return true;
}

void CudaBackend::attention_by_gemm(int layer, const ops::AttentionWeights& weights, std::size_t sequence, const float* q,
                                    float* out) {
  const ops::SequenceStep& s = plan_->sequences[sequence];
  const int nh = weights.num_q_heads, nkv = weights.num_kv_heads, hd = weights.head_dim, group = nh / nkv;
  const int tokens = s.past_tokens + s.num_rows;
  const bool bf16 = gemm_ == GemmType::bf16;
  const std::size_t element = bf16 ? 2 : 4;
  // Tensor cores want rows and sums of whole 16 bytes: a sum over 947 tokens took cuBLAS to a kernel six times slower than one over 952.
  // So K and V get rows of zeros, and probabilities columns of zeros.
  const int pitch = (tokens + 7) & ~7;
  const auto values = static_cast<std::int64_t>(pitch) * hd;
  void* keys = scratch(kSlotKeys, static_cast<std::size_t>(values) * element);
  void* vals = scratch(kSlotValues, static_cast<std::size_t>(values) * element);
  const int rows_at_once = rows_of_scores(std::min(s.num_rows, kScoreRows), pitch, group);
  const std::int64_t score_count = static_cast<std::int64_t>(group) * rows_at_once * pitch;
  float* scores = scratch_f32(kSlotScores, score_count);
  void* probabilities = bf16 ? scratch(kSlotProbabilities, static_cast<std::size_t>(score_count) * 2) : scores;
  const std::int64_t first_value = static_cast<std::int64_t>(s.first_row) * nh * hd;
  const void* queries = q + first_value;
  if (bf16) {
    const auto n = static_cast<u64>(s.num_rows) * static_cast<u64>(nh * hd);
    auto* converted = static_cast<unsigned short*>(scratch(kSlotInputs, n * 2));
    to_bf16(converted, q + first_value, n);
    queries = converted;
  }
  for (int kv_head = 0; kv_head < nkv; ++kv_head) {
    const unsigned gather_grid = map_grid(static_cast<std::uint64_t>(values));
    if (bf16) {
      device_->launch("kv_gather_bf16", {gather_grid}, {256}, 0, static_cast<unsigned short*>(keys),
                      static_cast<unsigned short*>(vals), device_sequences(), static_cast<int>(sequence), layer, kv_head, nkv, hd,
                      tokens, pitch, kv_type());
    } else {
      device_->launch("kv_gather", {gather_grid}, {256}, 0, static_cast<float*>(keys), static_cast<float*>(vals),
                      device_sequences(), static_cast<int>(sequence), layer, kv_head, nkv, hd, tokens, tokens, kv_type());
    }
    for (int r = 0; r < s.num_rows; r += rows_at_once) {
      const int rows = std::min(rows_at_once, s.num_rows - r), all_seen = s.past_tokens + r + rows;
      const int seen = bf16 ? (all_seen + 7) & ~7 : all_seen;
      const std::int64_t at = (static_cast<std::int64_t>(r) * nh + kv_head * group) * hd;
      GemmCall call;  // one product a query head, all with the same keys
      call.bf16 = bf16;
      call.m = rows;
      call.n = seen;
      call.k = hd;
      call.a = static_cast<const std::byte*>(queries) + static_cast<std::size_t>(at) * element;
      call.lda = nh * hd;
      call.b = keys;
      call.ldb = hd;
      call.c = scores;
      call.ldc = pitch;
      call.alpha = 1.0f / std::sqrt(static_cast<float>(hd));
      call.batch = group;
      call.stride_a = hd;
      call.stride_c = static_cast<long long>(rows) * pitch;
      gemm(call);
      const int all_rows = group * rows, first_valid = s.past_tokens + r + 1;
      const unsigned grid = row_grid(all_rows);
      if (bf16) {
        device_->launch("softmax_rows_bf16", {grid}, {256}, 0, static_cast<unsigned short*>(probabilities), scores, all_rows, seen, pitch,
                        rows, first_valid);
      } else {
        device_->launch("softmax_rows", {grid}, {256}, 0, scores, scores, all_rows, seen, pitch, rows, first_valid);
      }
      GemmCall product;
      product.bf16 = bf16;
      product.m = rows;
      product.n = hd;
      product.k = seen;
      product.a = probabilities;
      product.lda = pitch;
      product.b = vals;
      product.ldb = hd;
      product.b_transposed = false;
      product.c = out + first_value + at;
      product.ldc = nh * hd;
      product.batch = group;
      product.stride_a = call.stride_c;
      product.stride_c = hd;
      gemm(product);
    }
  }
}

}  // namespace heirloom::cuda
