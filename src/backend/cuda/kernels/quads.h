// Four floats as one access of 16 bytes: member by member, or clang splits it (gpu.h).
#pragma once

#include "backend/cuda/kernels/gpu.h"

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
