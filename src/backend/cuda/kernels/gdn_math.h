// Pieces of the gated delta rule that its recurrent and its chunked kernels must compute alike.
#pragma once

#include "backend/cuda/kernels/gpu.h"

/// Key head that value head h reads: h / (nv / nk) in Hugging Face order, h % nk in GGUF's tiled order.
DEVICE int key_head_of(int h, int num_k_heads, int num_v_heads, int tiled) {
  return tiled ? h % num_k_heads : h / (num_v_heads / num_k_heads);
}
DEVICE float gdn_log_decay(float a, float dt_bias, float neg_exp_a) { return neg_exp_a * gpu_softplus(a + dt_bias); }

/// Squares of a D-vector in shared memory summed by 32 threads into scratch[0..31] (lane = 0..31); after a barrier
/// `sum_of_32(scratch)` gives the sum to anyone.
template <int D>
DEVICE void square_sums(const float* v, int lane, float* scratch) {
  float s = 0;
  UNROLL for (int i = 0; i < D / 32; i++) s = gpu_fma(v[lane + 32 * i], v[lane + 32 * i], s);
  scratch[lane] = s;
}
DEVICE float sum_of_32(const float* scratch) {
  const F4* p = (const F4*)scratch;
  F4 s = p[0];
  UNROLL for (int i = 1; i < 8; i++) {
    s.x += p[i].x;
    s.y += p[i].y;
    s.z += p[i].z;
    s.w += p[i].w;
  }
  return (s.x + s.y) + (s.z + s.w);
}
