#include "backend/cpu/kernels/segment_attention/segment_attention.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/kernels/attention/attention_mixer.h"
#include "backend/cpu/kernels/tier_table.h"

namespace heirloom::cpu {
namespace {

constexpr int kChunkRows = 64;
constexpr std::int64_t kGroupFloats = 4 << 20;

}  // namespace

void SegmentAttention::run(ThreadPool& pool, CpuTier tier, ops::Matrix q, ops::Matrix k, ops::Matrix v, int num_heads,
                           std::span<const std::int32_t> segments, const float* rope_cos, const float* rope_sin,
                           ops::Matrix out) {
  const AttentionKernels& kernels = attention_kernels(tier);
  const auto d = static_cast<int>(q.cols / num_heads);
  const int padded = padded_dims(d);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));

  chunks_.clear();
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    for (int row = segments[s]; row < segments[s + 1]; row += kChunkRows) {
      chunks_.push_back({row, std::min(kChunkRows, segments[s + 1] - row), segments[s], segments[s + 1] - segments[s]});
    }
  }
  // Of one head. Scores are taken for whole tiles of 4 keys: those past a segment's end are dropped, but must be readable.
  const std::int64_t matrix = (q.rows + 3) * padded;
  const int group = static_cast<int>(std::clamp<std::int64_t>(kGroupFloats / std::max<std::int64_t>(1, 3 * matrix), 1, num_heads));
  float* packed = packed_.get<float>(group * 3 * matrix);
  const std::int64_t thread_floats = kChunkRows * (static_cast<std::int64_t>(kAttentionBlock) + 2 * padded);
  float* memory = threads_.get<float>(pool.num_threads() * thread_floats);

  for (int first_head = 0; first_head < num_heads; first_head += group) {
    const int heads = std::min(group, num_heads - first_head);
    // Heads become contiguous and padded with zeros; queries and keys are rotated on the way.
    pool.parallel_for(q.rows, rows_grain(3 * heads * padded), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (int h = 0; h < heads; ++h) {
          const std::int64_t from = row * q.cols + static_cast<std::int64_t>(first_head + h) * d;
          const float* source[3] = {q.data + from, k.data + from, v.data + from};
          for (int which = 0; which < 3; ++which) {
            float* to = packed + (h * 3 + which) * matrix + row * padded;
            if (rope_cos != nullptr && which < 2) {
              kernels.rope(source[which], rope_cos + row * (d / 2), rope_sin + row * (d / 2), d / 2, d, to);
            } else {
              std::copy_n(source[which], d, to);
            }
            std::fill(to + d, to + padded, 0.0f);
          }
        }
      }
    });
    const auto tasks = static_cast<std::int64_t>(chunks_.size()) * heads;
    pool.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      float* scores = memory + thread * thread_floats;
      float* sums = scores + kChunkRows * kAttentionBlock;
      float* block_sums = sums + static_cast<std::ptrdiff_t>(kChunkRows) * padded;
      Partial totals[kChunkRows], partials[kChunkRows];
      for (std::int64_t task = begin; task < end; ++task) {
        // Chunks of a head follow each other, so that its keys and values stay in the cache.
        const Chunk& chunk = chunks_[static_cast<std::size_t>(task % static_cast<std::int64_t>(chunks_.size()))];
        const std::int64_t head = task / static_cast<std::int64_t>(chunks_.size());
        const float* queries = packed + head * 3 * matrix + static_cast<std::ptrdiff_t>(chunk.first_row) * padded;
        for (int first = 0; first < chunk.keys; first += kAttentionBlock) {
          const int tokens = std::min(kAttentionBlock, chunk.keys - first);
          const float* keys = packed + (head * 3 + 1) * matrix + static_cast<std::ptrdiff_t>(chunk.first_key + first) * padded;
          const float* values = keys + matrix;
          kernels.score[0](queries, chunk.rows, keys, (tokens + 3) / 4 * 4, padded, scores, kAttentionBlock);
          Partial* result = first == 0 ? totals : partials;
          for (int i = 0; i < chunk.rows; ++i) result[i] = kernels.soften(scores + i * kAttentionBlock, tokens, tokens, scale);
          kernels.weigh[0](scores, kAttentionBlock, chunk.rows, values, tokens, padded, first == 0 ? sums : block_sums, false);
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
