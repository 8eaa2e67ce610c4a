// RMS norm and layer norm of rows:  out = x * rsqrt(mean(x^2) + eps) * w;  out = (x - mean) * rsqrt(var + eps) * w + b.
// One block a row, grid (min(rows, 65535)) with a stride loop. out may alias x.
// RMS norms: 256 threads, 1.2 KB of shared memory, two passes over the row (it stays in L1); cols is a multiple of 4. `twin`, where not
// null, gets the values as bf16 too, for the products that follow.
#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/layer_norm_args.h"
#include "backend/cuda/kernels/norm_math.h"
#include "backend/cuda/kernels/quads.h"

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

// Layer norms: blocks of 96 threads for up to 1,152 columns and of 384 for more, so that a row of a vision tower (1,152 or 4,608) is three
// accesses of four values to a thread and stays in registers; what is longer than 4,608 or no multiple of 4 takes 384 threads and passes
// over memory. 1.7 KB of shared memory, four barriers a row.

/// The norm of a row. With `Add`: x += delta + delta_bias comes first.
template <int Threads, bool Add>
DEVICE void layer_norm_in_registers(const LayerNormArgs& p, u64 at, float* scratch) {
  float* x = p.x + at;
  constexpr int kHeld = 3, kStep = 4 * Threads;
  const int first = 4 * tid_x();
  bool mine[kHeld];
  F4 held[kHeld], weight[kHeld], bias[kHeld];
  UNROLL for (int j = 0; j < kHeld; j++) {
    mine[j] = first + kStep * j < p.cols;
    held[j] = weight[j] = bias[j] = F4{0, 0, 0, 0};
  }
  UNROLL for (int j = 0; j < kHeld; j++) {
    if (mine[j]) held[j] = load_f4(x + first + kStep * j);
  }
  if (Add) {  // all loads before the first store
    UNROLL for (int j = 0; j < kHeld; j++) {
      if (mine[j]) {
        const F4 d = load_f4(p.delta + at + (u64)(first + kStep * j)), b = load_f4(p.delta_bias + first + kStep * j);
        held[j].x += d.x + b.x;
        held[j].y += d.y + b.y;
        held[j].z += d.z + b.z;
        held[j].w += d.w + b.w;
      }
    }
    UNROLL for (int j = 0; j < kHeld; j++) {
      if (mine[j]) store_f4(x + first + kStep * j, held[j]);
    }
  }
  float sum = 0, squares = 0;
  UNROLL for (int j = 0; j < kHeld; j++) {
    sum += (held[j].x + held[j].y) + (held[j].z + held[j].w);
    if (mine[j]) {  // on their way during the sums
      weight[j] = load_f4(p.weight + first + kStep * j);
      bias[j] = load_f4(p.bias + first + kStep * j);
    }
  }
  const float mean = block_reduce_again<Threads>(sum, scratch, Sum()) * p.inverse_cols;
  UNROLL for (int j = 0; j < kHeld; j++) {
    F4& v = held[j];
    v.x -= mean;
    v.y -= mean;
    v.z -= mean;
    v.w -= mean;
    const float of_quad = gpu_fma(v.w, v.w, gpu_fma(v.z, v.z, gpu_fma(v.y, v.y, v.x * v.x)));
    squares += mine[j] ? of_quad : 0.0f;
  }
  const float scale = gpu_rsqrt_approx(gpu_fma(block_reduce_again<Threads>(squares, scratch, Sum()), p.inverse_cols, p.eps));
  UNROLL for (int j = 0; j < kHeld; j++) {
    const F4 v = held[j], w = weight[j], b = bias[j];
    if (mine[j]) {
      const F4 r = {gpu_fma(v.x * scale, w.x, b.x), gpu_fma(v.y * scale, w.y, b.y), gpu_fma(v.z * scale, w.z, b.z), gpu_fma(v.w * scale, w.w, b.w)};
      store_f4(p.out + at + (u64)(first + kStep * j), r);
      if (p.twin) store_twin(p.twin + at + (u64)(first + kStep * j), r);
    }
  }
}
/// The same for rows of any length, without a twin.
template <int Threads, bool Add>
DEVICE void layer_norm_in_passes(const LayerNormArgs& p, u64 at, float* scratch) {
  float *to = p.out + at, *x = p.x + at;
  const auto each = [&](const auto& of_value) {
    for (int i = tid_x(); i < p.cols; i += Threads) of_value(i);
  };
  if (Add) each([&](int i) { x[i] += p.delta[at + (u64)i] + p.delta_bias[i]; });
  float sum = 0, squares = 0;
  each([&](int i) { sum += x[i]; });
  const float mean = block_reduce_again<Threads>(sum, scratch, Sum()) * p.inverse_cols;
  each([&](int i) { squares = gpu_fma(x[i] - mean, x[i] - mean, squares); });
  const float scale = gpu_rsqrt_approx(gpu_fma(block_reduce_again<Threads>(squares, scratch, Sum()), p.inverse_cols, p.eps));
  each([&](int i) { to[i] = gpu_fma((x[i] - mean) * scale, p.weight[i], p.bias[i]); });
}
template <bool Add>
DEVICE void layer_norm_rows(const LayerNormArgs& p) {
  SHARED F4 scratch4[(384 + 32) / 4];
  float* scratch = (float*)scratch4;
  gpu_wait_inputs();
  const auto each_row = [&](const auto& norm_of_row) {
    for (int r = bid_x(); r < p.rows; r += nbid_x()) norm_of_row((u64)r * (u64)p.cols);
  };
  if (ntid_x() == 96) {
    each_row([&](u64 at) { layer_norm_in_registers<96, Add>(p, at, scratch); });
  } else if (p.cols % 4 == 0 && p.cols <= kLayerNormHeld) {
    each_row([&](u64 at) { layer_norm_in_registers<384, Add>(p, at, scratch); });
  } else {
    each_row([&](u64 at) { layer_norm_in_passes<384, Add>(p, at, scratch); });
  }
}
KERNEL(layer_norm, 384, LayerNormArgs p) { layer_norm_rows<false>(p); }
/// x += delta + delta_bias, then the norm of it.
KERNEL(add_layer_norm, 384, LayerNormArgs p) { layer_norm_rows<true>(p); }
