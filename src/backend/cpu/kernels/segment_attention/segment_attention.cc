#include "backend/cpu/kernels/segment_attention/segment_attention.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/kernels/attention/attention_mixer.h"
#include "backend/cpu/kernels/tier_table.h"
#include "base/check.h"

namespace heirloom::cpu {
namespace {

constexpr int kChunkRows = 96;  // a multiple of every tier's rows of a tile
constexpr int kStripRows = 16;
constexpr int kMaxHeadDim = 512;
constexpr std::int64_t kGroupFloats = 4 << 20;

constexpr int round_up_16(int n) { return (n + 15) / 16 * 16; }

}  // namespace

void SegmentAttention::run(ThreadPool& pool, CpuTier tier, ops::Matrix q, ops::Matrix k, ops::Matrix v, int num_heads,
                           std::span<const std::int32_t> segments, const float* rope_cos, const float* rope_sin,
                           ops::Matrix out) {
  const AttentionKernels& kernels = attention_kernels(tier);
  const auto d = static_cast<int>(q.cols / num_heads);
  const int padded = padded_dims(d);
  HEIRLOOM_CHECK(d <= kMaxHeadDim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));

  // Keys are transposed block by block (kAttentionBlock tokens of a segment, the last block shorter and padded to 16): every
  // query of the segment meets them, and scores then need no sums across lanes.
  chunks_.clear();
  strips_.clear();
  std::int64_t columns = 0;
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    const int begin = segments[s], keys = segments[s + 1] - begin;
    for (int i = 0; i < keys; i += kChunkRows) chunks_.push_back({begin + i, std::min(kChunkRows, keys - i), begin, keys, columns});
    for (int i = 0; i < keys; i += kStripRows) {
      const int block = i / kAttentionBlock * kAttentionBlock;
      strips_.push_back({begin + i, std::min(kStripRows, keys - i), columns + block,
                         round_up_16(std::min(kAttentionBlock, keys - block)), i - block});
    }
    columns += round_up_16(keys);
  }
  const std::int64_t rows_floats = q.rows * padded, head_floats = 2 * rows_floats + columns * d;
  const int group = static_cast<int>(std::clamp<std::int64_t>(kGroupFloats / std::max<std::int64_t>(1, head_floats), 1, num_heads));
  float* packed = packed_.get<float>(group * head_floats);
  const std::int64_t thread_floats = kChunkRows * (static_cast<std::int64_t>(kAttentionBlock) + 2 * padded);
  float* memory = threads_.get<float>(pool.num_threads() * thread_floats);

  for (int first_head = 0; first_head < num_heads; first_head += group) {
    const int heads = std::min(group, num_heads - first_head);
    const auto strips = static_cast<std::int64_t>(strips_.size());
    pool.parallel_for(strips * heads, rows_grain(3 * kStripRows * padded), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const Strip& strip = strips_[static_cast<std::size_t>(task % strips)];
        const std::int64_t head = task / strips;
        float* to = packed + head * head_floats;
        float keys[kStripRows][kMaxHeadDim];
        for (int i = 0; i < strip.rows; ++i) {
          const std::int64_t row = strip.first_row + i, from = row * q.cols + (first_head + head) * d;
          float *query = to + row * padded, *value = to + rows_floats + row * padded;
          if (rope_cos != nullptr) {
            const float *cos = rope_cos + row * (d / 2), *sin = rope_sin + row * (d / 2);
            kernels.rope(q.data + from, cos, sin, d / 2, d, query);
            kernels.rope(k.data + from, cos, sin, d / 2, d, keys[i]);
          } else {
            std::copy_n(q.data + from, d, query);
            std::copy_n(k.data + from, d, keys[i]);
          }
          std::copy_n(v.data + from, d, value);
          std::fill(value + d, value + padded, 0.0f);
        }
        // Columns past the segment's end repeat its last key: they are read in whole vectors and dropped.
        float* transposed = to + 2 * rows_floats + strip.key_column * d + strip.key_place;
        for (int j = 0; j < d; ++j) {
          for (int i = 0; i < kStripRows; ++i) transposed[j * strip.key_stride + i] = keys[std::min(i, strip.rows - 1)][j];
        }
      }
    });
    const auto chunks = static_cast<std::int64_t>(chunks_.size());
    pool.parallel_for(chunks * heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      float* scores = memory + thread * thread_floats;
      float* sums = scores + kChunkRows * kAttentionBlock;
      float* block_sums = sums + static_cast<std::ptrdiff_t>(kChunkRows) * padded;
      Partial totals[kChunkRows], partials[kChunkRows];
      for (std::int64_t task = begin; task < end; ++task) {
        // Chunks of a head follow each other, so that its keys and values stay in the cache.
        const Chunk& chunk = chunks_[static_cast<std::size_t>(task % chunks)];
        const std::int64_t head = task / chunks;
        const float* from = packed + head * head_floats;
        for (int first = 0; first < chunk.keys; first += kAttentionBlock) {
          const int tokens = std::min(kAttentionBlock, chunk.keys - first), stride = round_up_16(tokens);
          kernels.score_transposed(from + static_cast<std::ptrdiff_t>(chunk.first_row) * padded, padded, chunk.rows,
                                   from + 2 * rows_floats + (chunk.key_offset + first) * d, stride, stride, d, scores, kAttentionBlock);
          Partial* result = first == 0 ? totals : partials;
          for (int i = 0; i < chunk.rows; ++i) result[i] = kernels.soften(scores + i * kAttentionBlock, tokens, tokens, scale);
          kernels.weigh[0](scores, kAttentionBlock, chunk.rows,
                           from + rows_floats + static_cast<std::ptrdiff_t>(chunk.first_key + first) * padded, tokens, padded,
                           first == 0 ? sums : block_sums, false);
          if (first == 0) continue;
          for (int i = 0; i < chunk.rows; ++i) {
            kernels.merge(&totals[i], sums + i * padded, &partials[i], block_sums + i * padded, padded, scale);
          }
        }
        for (int i = 0; i < chunk.rows; ++i) {
          kernels.finish(sums + i * padded, totals[i].total, nullptr, d,
                         out.data + (chunk.first_row + i) * out.cols + (first_head + head) * d);
        }
      }
    });
  }
}

}  // namespace heirloom::cpu
