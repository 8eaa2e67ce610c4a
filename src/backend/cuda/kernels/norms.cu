// RMS norm and layer norm of rows:  out = x * rsqrt(mean(x^2) + eps) * w;  out = (x - mean) * rsqrt(var + eps) * w + b.
// One block of 256 threads a row, grid (min(rows, 65535)) with a stride loop; 1.2 KB of shared memory; two or three passes over the row
// (it stays in L1, or in registers). cols of RMS norms is a multiple of 4. out may alias x. `twin`, where not null, gets the values as bf16 too, for the products
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

/// The norm of a row. What a thread takes of the first 2,048 values stays in registers. With `delta`: delta += delta_bias, x += delta come first.
template <bool Add>
DEVICE void layer_norm_row(float* to, float* x, float* delta, const float* delta_bias, const float* weight, const float* bias, int cols, float eps,
                           float* scratch) {
  constexpr int kHeld = 8;
  const int t = tid_x();
  const auto value = [&](int i) {
    float v = x[i];
    if (Add) {
      const float d = delta[i] + delta_bias[i];
      delta[i] = d;
      v += d;
      x[i] = v;
    }
    return v;
  };
  float held[kHeld], sum = 0, squares = 0;
  if (Add) {  // all loads before the first store
    float added[kHeld];
    UNROLL for (int j = 0; j < kHeld; j++) {
      const int i = t + 256 * j;
      held[j] = added[j] = 0;
      if (i < cols) {
        held[j] = x[i];
        added[j] = delta[i] + delta_bias[i];
      }
    }
    UNROLL for (int j = 0; j < kHeld; j++) {
      const int i = t + 256 * j;
      held[j] += added[j];
      if (i < cols) {
        delta[i] = added[j];
        x[i] = held[j];
      }
    }
  } else {
    UNROLL for (int j = 0; j < kHeld; j++) held[j] = t + 256 * j < cols ? x[t + 256 * j] : 0.0f;
  }
  UNROLL for (int j = 0; j < kHeld; j++) sum += held[j];
  for (int i = t + 256 * kHeld; i < cols; i += 256) sum += value(i);
  const float mean = block_reduce<256>(sum, scratch, Sum()) / (float)cols;
  UNROLL for (int j = 0; j < kHeld; j++) {
    if (t + 256 * j < cols) squares = gpu_fma(held[j] - mean, held[j] - mean, squares);
  }
  for (int i = t + 256 * kHeld; i < cols; i += 256) squares = gpu_fma(x[i] - mean, x[i] - mean, squares);
  const float scale = 1.0f / gpu_sqrt(block_reduce<256>(squares, scratch, Sum()) / (float)cols + eps);
  UNROLL for (int j = 0; j < kHeld; j++) {
    const int i = t + 256 * j;
    if (i < cols) to[i] = gpu_fma((held[j] - mean) * scale, weight[i], bias[i]);
  }
  for (int i = t + 256 * kHeld; i < cols; i += 256) to[i] = gpu_fma((x[i] - mean) * scale, weight[i], bias[i]);
}
KERNEL(layer_norm, 256, float* out, const float* x, const float* weight, const float* bias, int rows, int cols, float eps) {
  SHARED F4 scratch4[72];
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const u64 at = (u64)r * (u64)cols;
    layer_norm_row<false>(out + at, (float*)x + at, (float*)0, (const float*)0, weight, bias, cols, eps, (float*)scratch4);
  }
}
/// delta += delta_bias; x += delta, then the norm of it.
KERNEL(add_layer_norm, 256, float* out, float* x, float* delta, const float* delta_bias, const float* weight, const float* bias, int rows,
       int cols, float eps) {
  SHARED F4 scratch4[72];
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const u64 at = (u64)r * (u64)cols;
    layer_norm_row<true>(out + at, x + at, delta + at, delta_bias, weight, bias, cols, eps, (float*)scratch4);
  }
}
