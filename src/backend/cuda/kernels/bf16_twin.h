// Kernels that make the input of BF16 products leave it as bf16 beside the floats, which saves a pass over it.
#pragma once

#include "backend/cuda/kernels/gpu.h"

/// Four values at `to`, which is 8-byte aligned.
DEVICE void store_twin(u16* to, F4 v) {
  U2* word = (U2*)to;
  word->x = f32x2_to_bf16x2(v.x, v.y);
  word->y = f32x2_to_bf16x2(v.z, v.w);
}
