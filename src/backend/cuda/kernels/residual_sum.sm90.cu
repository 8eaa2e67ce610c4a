// out = x + its parts: the residual stream in one piece again (layer_args.h). Block of 256 threads, a value each.
#include "backend/cuda/kernels/gpu.h"

KERNEL(residual_sum, 256, float* out, const float* x, const float* partials, int parts, int hidden) {
  const int i = bid_x() * 256 + tid_x();
  gpu_let_next_start();
  gpu_wait_inputs();
  if (i >= hidden) return;
  float v = x[i];
  UNROLL4 for (int p = 0; p < parts; p++) v += partials[p * hidden + i];
  out[i] = v;
}
