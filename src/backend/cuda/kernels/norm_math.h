// RMS norm arithmetic shared by the norm kernels and by the GEMV that norms its input, so that both give the same bits.
#pragma once

#include "backend/cuda/kernels/block_reduce.h"

/// The sum of v over the block's 256 threads, to every thread. `scratch`: 288 floats.
DEVICE float norm_sum(float v, float* scratch) {
#if GPU_TIER >= 80  // one barrier for the sum, one before it because `scratch` may still be read
  UNROLL for (int mask = 16; mask > 0; mask /= 2) v += gpu_shuffle_xor(v, mask);
  gpu_sync();
  if ((tid_x() & 31) == 0) scratch[tid_x() >> 5] = v;
  gpu_sync();
  return ((scratch[0] + scratch[1]) + (scratch[2] + scratch[3])) + ((scratch[4] + scratch[5]) + (scratch[6] + scratch[7]));
#else
  return block_reduce<256>(v, scratch, Sum());
#endif
}

/// rsqrt(mean(x^2) + eps) of a row of `cols` (a multiple of 4; its inverse is given), by a block of 256 threads. `scratch`: 288 floats.
DEVICE float row_rms_scale(const F4* x, int cols, float inverse_cols, float eps, float* scratch) {
  float sum = 0;
  for (int i = tid_x(); i < cols / 4; i += 256) {
    const F4 v = x[i];
    sum = gpu_fma(v.x, v.x, sum);
    sum = gpu_fma(v.y, v.y, sum);
    sum = gpu_fma(v.z, v.z, sum);
    sum = gpu_fma(v.w, v.w, sum);
  }
  return gpu_rsqrt_approx(gpu_fma(norm_sum(sum, scratch), inverse_cols, eps));
}
DEVICE F4 rms_apply(F4 x, F4 weight, float scale) {
  return F4{x.x * scale * weight.x, x.y * scale * weight.y, x.z * scale * weight.z, x.w * scale * weight.w};
}
