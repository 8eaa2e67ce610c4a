// Elementwise maps. 256 threads, grid (min(ceil(n / 256), 65535)), stride loop; bound by memory.
//   swiglu: silu(gate) * up      gelu_*: gelu.h, biased ones in bias.cu
#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/gelu.h"
#include "backend/cuda/kernels/quads.h"

#define EACH(n) for (u64 i = (u64)bid_x() * 256 + (u64)tid_x(); i < n; i += (u64)nbid_x() * 256)

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
    const F4 a = load_f4(gate + 4 * i), b = load_f4(up + 4 * i);
    const F4 v = F4{gpu_silu(a.x) * b.x, gpu_silu(a.y) * b.y, gpu_silu(a.z) * b.z, gpu_silu(a.w) * b.w};
    store_f4(out + 4 * i, v);
    store_twin(twin + 4 * i, v);
  }
}
KERNEL(gelu_tanh, 256, float* x, u64 n) {
  gpu_wait_inputs();
  EACH(n) x[i] = gelu_tanh_of(x[i]);
}
KERNEL(gelu_erf, 256, float* x, u64 n) {
  gpu_wait_inputs();
  EACH(n) x[i] = gelu_erf_of(x[i]);
}
/// n values in `quads` = n / 4 steps of four.
KERNEL(f32_to_bf16_rows, 256, u16* out, const float* x, u64 quads) {
  gpu_wait_inputs();
  EACH(quads) store_twin(out + 4 * i, load_f4(x + 4 * i));
}
