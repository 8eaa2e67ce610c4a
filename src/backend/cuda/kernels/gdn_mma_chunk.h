// What the gdn_mma_* kernels share: the chunk of a block, and fragments of matrices in shared memory.
#pragma once

#include "backend/cuda/kernels/gdn_chunk.h"
#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/gdn_mma_args.h"

#if GPU_TIER >= 80

constexpr int kDim = 128;

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
