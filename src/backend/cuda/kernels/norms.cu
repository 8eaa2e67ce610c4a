// RMS norm and layer norm of rows:  out = x * rsqrt(mean(x^2) + eps) * w;  out = (x - mean) * rsqrt(var + eps) * w + b.
// One block of 256 threads a row, grid (min(rows, 65535)) with a stride loop; 1.2 KB of shared memory; two passes over the row
// (it stays in L1). cols is a multiple of 4. out may alias x. `twin`, where not null, gets the values as bf16 too, for the products
// that follow.
#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/norm_math.h"

KERNEL(rms_norm, 256, float* out, u16* twin, const float* x, const float* weight, int rows, int cols, float eps) {
  SHARED F4 scratch4[72];
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const F4* in = (const F4*)(x + (u64)r * (u64)cols);
    F4* to = (F4*)(out + (u64)r * (u64)cols);
    const float scale = row_rms_scale(in, cols, 1.0f / (float)cols, eps, (float*)scratch4);
    for (int i = tid_x(); i < cols / 4; i += 256) {
      const F4 v = rms_apply(in[i], ((const F4*)weight)[i], scale);
      to[i] = v;
      if (twin) store_twin(twin + (u64)r * (u64)cols + (u64)(4 * i), v);
    }
  }
}

/// residual += delta, then the norm of it.
KERNEL(add_rms_norm, 256, float* out, u16* twin, float* residual, const float* delta, const float* weight, int rows, int cols, float eps) {
  SHARED F4 scratch4[72];
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    F4* sum = (F4*)(residual + (u64)r * (u64)cols);
    const F4* add = (const F4*)(delta + (u64)r * (u64)cols);
    F4* to = (F4*)(out + (u64)r * (u64)cols);
    for (int i = tid_x(); i < cols / 4; i += 256) {  // each thread reads back only what it wrote itself
      F4 v = sum[i];
      const F4 d = add[i];
      v.x += d.x;
      v.y += d.y;
      v.z += d.z;
      v.w += d.w;
      sum[i] = v;
    }
    const float scale = row_rms_scale(sum, cols, 1.0f / (float)cols, eps, (float*)scratch4);
    for (int i = tid_x(); i < cols / 4; i += 256) {
      const F4 v = rms_apply(sum[i], ((const F4*)weight)[i], scale);
      to[i] = v;
      if (twin) store_twin(twin + (u64)r * (u64)cols + (u64)(4 * i), v);
    }
  }
}

KERNEL(layer_norm, 256, float* out, const float* x, const float* weight, const float* bias, int rows, int cols, float eps) {
  SHARED F4 scratch4[72];
  float* scratch = (float*)scratch4;
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const float* in = x + (u64)r * (u64)cols;
    float* to = out + (u64)r * (u64)cols;
    float sum = 0;
    for (int i = tid_x(); i < cols; i += 256) sum += in[i];
    const float mean = block_reduce<256>(sum, scratch, Sum()) / (float)cols;
    float squares = 0;
    for (int i = tid_x(); i < cols; i += 256) squares = gpu_fma(in[i] - mean, in[i] - mean, squares);
    const float scale = 1.0f / gpu_sqrt(block_reduce<256>(squares, scratch, Sum()) / (float)cols + eps);
    for (int i = tid_x(); i < cols; i += 256) to[i] = gpu_fma((in[i] - mean) * scale, weight[i], bias[i]);
  }
}
