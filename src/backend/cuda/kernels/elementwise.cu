// Elementwise maps. 256 threads, grid (min(ceil(n / 256), 65535)), stride loop; bound by memory.
//   swiglu: silu(gate) * up      gelu_tanh: x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3)   gelu_erf: x erfc(-x/sqrt 2) / 2
// tanh is written as a sigmoid because 1 + tanh(u) cancels for negative u; erfc is Numerical Recipes' erfcc (section 6.2,
// fractional error 1.2e-7 everywhere).
#include "backend/cuda/kernels/bf16_twin.h"

#define EACH(n) for (u64 i = (u64)bid_x() * 256 + (u64)tid_x(); i < n; i += (u64)nbid_x() * 256)

DEVICE float erfc_nr(float x) {
  const float z = x < 0 ? -x : x, t = 1.0f / gpu_fma(0.5f, z, 1.0f);
  float p = 0.17087277f;
  p = gpu_fma(p, t, -0.82215223f);
  p = gpu_fma(p, t, 1.48851587f);
  p = gpu_fma(p, t, -1.13520398f);
  p = gpu_fma(p, t, 0.27886807f);
  p = gpu_fma(p, t, -0.18628806f);
  p = gpu_fma(p, t, 0.09678418f);
  p = gpu_fma(p, t, 0.37409196f);
  p = gpu_fma(p, t, 1.00002368f);
  p = gpu_fma(p, t, -1.26551223f);
  const float r = t * gpu_exp(gpu_fma(-z, z, p));
  return x < 0 ? 2.0f - r : r;
}

KERNEL(add, 256, float* x, const float* y, u64 n) {
  gpu_wait_inputs();
  EACH(n) x[i] += y[i];
}
KERNEL(swiglu, 256, float* out, const float* gate, const float* up, u64 n) {
  gpu_wait_inputs();
  EACH(n) out[i] = gpu_silu(gate[i]) * up[i];
}
/// The same for `quads` = n / 4 steps of four, and as bf16 in `twin` (bf16_twin.h).
KERNEL(swiglu_bf16, 256, float* out, u16* twin, const float* gate, const float* up, u64 quads) {
  gpu_wait_inputs();
  EACH(quads) {
    const F4 *g = (const F4*)gate + i, *u = (const F4*)up + i;
    F4 a, b;
    a.x = g->x;
    a.y = g->y;
    a.z = g->z;
    a.w = g->w;
    b.x = u->x;
    b.y = u->y;
    b.z = u->z;
    b.w = u->w;
    const F4 v = F4{gpu_silu(a.x) * b.x, gpu_silu(a.y) * b.y, gpu_silu(a.z) * b.z, gpu_silu(a.w) * b.w};
    F4* to = (F4*)out + i;
    to->x = v.x;
    to->y = v.y;
    to->z = v.z;
    to->w = v.w;
    store_twin(twin + 4 * i, v);
  }
}
KERNEL(gelu_tanh, 256, float* x, u64 n) {
  gpu_wait_inputs();
  EACH(n) {
    const float v = x[i], u = 1.5957691216f * gpu_fma(0.044715f * v * v, v, v);
    x[i] = v * gpu_sigmoid(u);
  }
}
KERNEL(gelu_erf, 256, float* x, u64 n) {
  gpu_wait_inputs();
  EACH(n) {
    const float v = x[i];
    x[i] = 0.5f * v * erfc_nr(v * -0.70710678f);
  }
}
KERNEL(add_bias, 256, float* x, const float* bias, u64 n, u32 cols) {
  gpu_wait_inputs();
  EACH(n) x[i] += bias[i % cols];
}
/// n values in `quads` = n / 4 steps of four.
KERNEL(f32_to_bf16_rows, 256, u16* out, const float* x, u64 quads) {
  gpu_wait_inputs();
  EACH(quads) {
    const F4* from = (const F4*)x + i;
    U2* to = (U2*)out + i;
    F4 v;
    v.x = from->x;
    v.y = from->y;
    v.z = from->z;
    v.w = from->w;
    to->x = f32x2_to_bf16x2(v.x, v.y);
    to->y = f32x2_to_bf16x2(v.z, v.w);
  }
}
