// Sums over a warp by shuffles, in a fixed tree.
#pragma once

#include "backend/cuda/kernels/gpu.h"

/// Sums of four values over a warp: lane l gets that of value l & 3. Six shuffles, where four sums of their own take twenty.
DEVICE float warp_sums(float v0, float v1, float v2, float v3, int lane) {
  const bool odd = lane & 1, upper = lane & 2;
  float a = odd ? v1 : v0, b = odd ? v3 : v2;
  a += gpu_shuffle_xor(odd ? v0 : v1, 1);
  b += gpu_shuffle_xor(odd ? v2 : v3, 1);
  float v = upper ? b : a;
  v += gpu_shuffle_xor(upper ? a : b, 2);
  UNROLL for (int mask = 4; mask < 32; mask *= 2) v += gpu_shuffle_xor(v, mask);
  return v;
}
/// The sum of v over the lanes of a warp, to every lane.
DEVICE float warp_total(float v) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) v += gpu_shuffle_xor(v, mask);
  return v;
}
DEVICE float warp_largest(float v) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) v = gpu_max(v, gpu_shuffle_xor(v, mask));
  return v;
}
