// Which chunk a block of the gdn_mma_* kernels works on, and fragments of matrices in shared memory.
#pragma once

#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/gdn_mma_args.h"

#if GPU_TIER >= 80

constexpr int kDim = 128;

/// Chunks lie at absolute positions (multiples of 64); the first may start inside one.
struct GdnChunk {
  int begin, rows;  // position of its first token; how many it has, <= 0: the sequence has no such chunk
  u64 row0, slot;   // its first row in the step
};
DEVICE GdnChunk gdn_chunk_of(const StepSequence& s, int sequence, int index) {
  GdnChunk c;
  const int chunk = s.past_tokens / 64 + index;
  c.begin = gpu_max_i(s.past_tokens, chunk * 64);
  c.rows = gpu_min_i(s.past_tokens + s.num_rows, chunk * 64 + 64) - c.begin;
  c.row0 = (u64)(s.first_row + c.begin - s.past_tokens);
  c.slot = (u64)(s.first_row / 64 + 2 * sequence + index);
  return c;
}

/// Fragment of A for m16n8k8 (words of TF32) or, with cells of two bf16, for m16n8k16: `cell` is row g, word t; the pitch in words.
DEVICE void load_a(u32 (&a)[4], const u32* cell, int pitch) {
  a[0] = cell[0];
  a[1] = cell[8 * pitch];
  a[2] = cell[4];
  a[3] = cell[8 * pitch + 4];
}
/// The same for B whose columns are rows in shared memory.
DEVICE void load_b(u32 (&b)[2], const u32* cell) {
  b[0] = cell[0];
  b[1] = cell[4];
}

#endif
