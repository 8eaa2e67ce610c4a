// RMS norm arithmetic shared by the norm kernels and by the GEMV that norms its input, so that both give the same bits.
#pragma once

#include "backend/cuda/kernels/block_reduce.h"

/// rsqrt(mean(x^2) + eps) of a row of `cols` (a multiple of 4), by a block of 256 threads. `scratch`: 288 floats.
DEVICE float row_rms_scale(const F4* x, int cols, float eps, float* scratch) {
  float sum = 0;
  for (int i = tid_x(); i < cols / 4; i += 256) {
    const F4 v = x[i];
    sum = gpu_fma(v.x, v.x, sum);
    sum = gpu_fma(v.y, v.y, sum);
    sum = gpu_fma(v.z, v.z, sum);
    sum = gpu_fma(v.w, v.w, sum);
  }
  return gpu_rsqrt_approx(block_reduce<256>(sum, scratch, Sum()) / (float)cols + eps);
}
DEVICE F4 rms_apply(F4 x, F4 weight, float scale) {
  return F4{x.x * scale * weight.x, x.y * scale * weight.y, x.z * scale * weight.z, x.w * scale * weight.w};
}
