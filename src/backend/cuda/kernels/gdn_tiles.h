// What the FP32 kernels of the chunked delta rule share.
#pragma once

#include "backend/cuda/kernels/gpu.h"
#include "backend/cuda/kernels/step_table.h"

DEVICE F4 load_f4(const float* p) {
  const F4* q = (const F4*)p;
  F4 v;
  v.x = q->x;
  v.y = q->y;
  v.z = q->z;
  v.w = q->w;
  return v;
}
DEVICE void store_f4(float* p, F4 v) {
  F4* q = (F4*)p;
  q->x = v.x;
  q->y = v.y;
  q->z = v.z;
  q->w = v.w;
}
/// Where the states before the chunks of a sequence lie: chunk c is slot first_row / 64 + 2 sequence + c, which no two share.
DEVICE u64 gdn_first_slot(const StepSequence& s, int sequence) { return (u64)(s.first_row / 64 + 2 * sequence); }
