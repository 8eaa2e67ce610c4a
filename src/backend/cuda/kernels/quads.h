// Four floats: one access of 16 bytes (member by member, or clang splits it: gpu.h), and sums of products with them.
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
/// sum + the products of the members of a and b, in order.
DEVICE float dot4(F4 a, F4 b, float sum) {
  sum = gpu_fma(a.x, b.x, sum);
  sum = gpu_fma(a.y, b.y, sum);
  sum = gpu_fma(a.z, b.z, sum);
  return gpu_fma(a.w, b.w, sum);
}
/// sum += v * scale.
DEVICE void add_scaled(F4& sum, F4 v, float scale) {
  sum.x = gpu_fma(v.x, scale, sum.x);
  sum.y = gpu_fma(v.y, scale, sum.y);
  sum.z = gpu_fma(v.z, scale, sum.z);
  sum.w = gpu_fma(v.w, scale, sum.w);
}
