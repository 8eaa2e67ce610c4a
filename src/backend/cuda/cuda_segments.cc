// Attention of vision towers: bidirectional, inside segments (a picture's tiles, a merger's windows).
#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/launch_grids.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

using u64 = unsigned long long;

// Segments of at most so many rows (the 2x2 windows of MiniCPM's merger) are a block a head each.
constexpr int kSmallSegment = 16;
constexpr int kSmallHeadDim = 128;
constexpr float kLog2E = 1.44269504f;

bool has_tiles(int head_dim) { return head_dim == 64 || head_dim == 72; }

}  // namespace

const int* CudaBackend::device_segments(std::span<const std::int32_t> segments) {
  const int* held = std::exchange(segments_device_, nullptr);  // until they are known to be there: an error may end this
  auto* places = static_cast<int*>(scratch(kSlotSegments, segments.size_bytes()));
  if (places != held || !std::ranges::equal(segments, segments_host_)) {
    segments_host_.assign(segments.begin(), segments.end());
    device_->copy_in(places, segments_host_.data(), segments.size_bytes(), Lane::compute);
  }
  return segments_device_ = places;
}

// q, k and v, which may still wait as products (then they become one) or for their biases.
SegmentAttentionArgs CudaBackend::segment_inputs(ops::Matrix q, ops::Matrix k, ops::Matrix v) {
  SegmentAttentionArgs args{};
  args.q = q.data;
  args.k = k.data;
  args.v = v.data;
  args.width = args.stride = static_cast<int>(q.cols);
  const float* const outs[] = {q.data, k.data, v.data};
  if (pending_products_) {
    const std::vector<ops::LinearOut> waiting = pending_products_->outs;
    if (float* joined = joined_products(outs)) {
      args.stride = 3 * args.width;
      args.q = joined;
      args.k = joined + args.width;
      args.v = joined + 2 * args.width;
      args.q_bias = waiting[0].bias;
      args.v_bias = waiting[2].bias;
    }
  } else if (pending_biases_.size() == 3 && std::ranges::equal(outs, pending_biases_, {}, {}, [](const PendingBias& bias) { return bias.of.data; })) {
    args.q_bias = pending_biases_[0].bias;
    args.v_bias = pending_biases_[2].bias;
    pending_biases_.clear();
  }
  flush();
  return args;
}

void CudaBackend::segment_attention(ops::Matrix q, ops::Matrix k, ops::Matrix v, int num_heads,
                                    std::span<const std::int32_t> segments, const float* rope_cos, const float* rope_sin,
                                    ops::Matrix out) {
  const int width = static_cast<int>(q.cols), hd = width / num_heads, count = static_cast<int>(segments.size()) - 1;
  int longest = 0;
  for (int s = 0; s < count; ++s) longest = std::max(longest, segments[static_cast<std::size_t>(s) + 1] - segments[static_cast<std::size_t>(s)]);
  if (longest == 0) return;
  const bool small = longest <= kSmallSegment && hd <= kSmallHeadDim;
  const bool in_tiles = !small && has_tiles(hd) && count <= kGridMost;
  const bool kernel_adds_biases = rope_cos == nullptr && (small || in_tiles);
  if (!kernel_adds_biases) flush();
  SegmentAttentionArgs args = segment_inputs(q, k, v);
  if (rope_cos) {
    const auto n = static_cast<u64>(q.rows * q.cols);
    float* turned[2] = {scratch_f32(kSlotKeys, q.rows * q.cols), scratch_f32(kSlotValues, q.rows * q.cols)};
    const float* from[2] = {args.q, args.k};
    for (int i = 0; i < 2; ++i) {
      device_->launch("rope_heads", {map_grid(n)}, {256}, 0, turned[i], from[i], rope_cos, rope_sin, n, num_heads, hd);
    }
    args.q = turned[0];
    args.k = turned[1];
  }
  args.head_dim = hd;
  args.scale = 1.0f / std::sqrt(static_cast<float>(hd));
  args.count = count;
  args.out = out.data;
  if (small) {
    args.segments = device_segments(segments);
    args.twin = bf16_twin(out);
    const auto shared = static_cast<std::size_t>(3 * kSmallSegment * hd + kSmallSegment * kSmallSegment) * 4;
    device_->launch("segment_attention_small", {row_grid(count), static_cast<unsigned>(num_heads)}, {128}, shared, args);
    return;
  }
  if (in_tiles) {
    args.segments = device_segments(segments);
    args.twin = bf16_twin(out);
    args.scale *= kLog2E;
    // 64 queries a block read keys half as often as 32 (163 and 216 us for 1,024 rows of 16 heads of 72 on an H200), where a thread may have the registers
    // (not before compute capability 3.5) and those of one small tile leave no multiprocessor without work (256 rows: 31 and 24 us).
    const DeviceInfo& info = device_->info();
    const std::int64_t blocks = static_cast<std::int64_t>((longest + 63) / 64) * num_heads * count;
    const int rows = info.compute_major * 10 + info.compute_minor >= 35 && blocks >= info.multiprocessors ? 4 : 2;
    const std::string kernel = fmt::format("segment_attention_{}_{}", hd, rows);
    device_->launch(kernel.c_str(), {static_cast<unsigned>((longest + 16 * rows - 1) / (16 * rows)), static_cast<unsigned>(num_heads), static_cast<unsigned>(count)},
                    {128}, 0, args);
    return;
  }
  segment_attention_by_gemm(args, num_heads, segments, longest);
}

void CudaBackend::segment_attention_by_gemm(const SegmentAttentionArgs& args, int num_heads, std::span<const std::int32_t> segments, int longest) {
  const int rows_at_once = rows_of_scores(longest, longest, num_heads);
  float* scores = scratch_f32(kSlotScores, static_cast<std::int64_t>(num_heads) * rows_at_once * longest);
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    const int begin = segments[s], n = segments[s + 1] - begin;
    for (int r = 0; r < n; r += rows_at_once) {
      const int rows = std::min(rows_at_once, n - r), all_rows = num_heads * rows;
      const std::int64_t all = static_cast<std::int64_t>(begin) * args.width, at = all + static_cast<std::int64_t>(r) * args.width;
      GemmCall call;  // one product a head
      call.m = rows;
      call.n = n;
      call.k = args.head_dim;
      call.a = args.q + at;
      call.b = args.k + all;
      call.c = scores;
      call.lda = call.ldb = args.width;
      call.ldc = n;
      call.alpha = args.scale;
      call.batch = num_heads;
      call.stride_a = call.stride_b = args.head_dim;
      call.stride_c = static_cast<long long>(rows) * n;
      gemm(call);
      device_->launch("softmax_rows", {row_grid(all_rows)}, {256}, 0, scores, scores, all_rows, n, n, 0, 0);
      GemmCall product;
      product.m = rows;
      product.n = args.head_dim;
      product.k = n;
      product.a = scores;
      product.lda = n;
      product.b = args.v + all;
      product.ldb = args.width;
      product.b_transposed = false;
      product.c = args.out + at;
      product.ldc = args.width;
      product.batch = num_heads;
      product.stride_a = call.stride_c;
      product.stride_b = product.stride_c = args.head_dim;
      gemm(product);
    }
  }
}

}  // namespace heirloom::cuda
