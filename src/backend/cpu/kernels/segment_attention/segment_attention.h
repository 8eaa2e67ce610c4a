// Bidirectional attention inside segments (vision towers): how the work is cut among threads. The arithmetic is that of
// attention/attention_kernels.h.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/kernels/attention/attention_kernels.h"
#include "backend/cpu/kernels/linear/activations.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

class SegmentAttention {
 public:
  /// ops::Backend::segment_attention. Keeps at most about 16 MiB of packed heads between calls (one head if that is more).
  /// out must not alias q, k or v.
  void run(ThreadPool& pool, CpuTier tier, ops::Matrix q, ops::Matrix k, ops::Matrix v, int num_heads,
           std::span<const std::int32_t> segments, const float* rope_cos, const float* rope_sin, ops::Matrix out);

 private:
  /// Query rows that pass over the keys of their segment together.
  struct Chunk {
    int first_row, rows;
    int first_key, keys;
    std::int64_t key_offset;  // of the segment's transposed keys in those of a head, in columns
  };
  /// Up to 16 rows of one segment that are packed together.
  struct Strip {
    int first_row, rows;
    std::int64_t key_column;  // where their transposed keys go: the first column of their block, and the place in it
    int key_stride, key_place;
  };
  std::vector<Chunk> chunks_;
  std::vector<Strip> strips_;
  Scratch packed_;   // per head of a group: q [rows, padded dims], v likewise, keys in blocks [dims, tokens of the block]
  Scratch threads_;  // per thread: scores, sums of all blocks, sums of one
};

}  // namespace heirloom::cpu
