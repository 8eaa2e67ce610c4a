// out = rms_norm(y) * norm * silu(z) per value head, after the chunked delta rule (gdn_recurrent.cu has it built in, in the same
// order of operations). Block of D threads a (head, row), grid (nv, min(rows, 65535)); rows of z lie z_stride floats apart.
#include "backend/cuda/kernels/gdn_math.h"

template <int D>
DEVICE void gated_norm(float* out, u16* twin, const float* y, const float* z, const float* norm, int num_v_heads, int rows, int z_stride, float eps) {
  SHARED float v[D];
  SHARED F4 scratch4[8];
  float* scratch = (float*)scratch4;
  gpu_wait_inputs();
  const int t = tid_x();
  for (int r = bid_y(); r < rows; r += nbid_y()) {
    const u64 at = ((u64)r * (u64)num_v_heads + (u64)bid_x()) * D + (u64)t;
    gpu_sync();
    v[t] = y[at];
    gpu_sync();
    if (t < 32) square_sums<D>(v, t, scratch);
    gpu_sync();
    const float scale = gpu_rsqrt_approx(sum_of_32(scratch) * (1.0f / D) + eps);
    const float value = v[t] * scale * norm[t] * gpu_silu(z[(u64)r * (u64)z_stride + (u64)(bid_x() * D + t)]);
    out[at] = value;
    if (twin) twin[at] = f32_to_bf16(value);
  }
}
#define GATED(D)                                                                                                       \
  KERNEL(gdn_gated_norm_##D, D, float* out, u16* twin, const float* y, const float* z, const float* norm, int num_v_heads, int rows, \
         int z_stride, float eps) {                                                                                                  \
    gated_norm<D>(out, twin, y, z, norm, num_v_heads, rows, z_stride, eps);                                                          \
  }
GATED(32)
GATED(64)
GATED(128)
