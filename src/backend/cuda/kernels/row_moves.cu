// Rows made of bytes or moved by index: gather out[r] = x[ids[r]], scatter out[ids[r]] = x[r], and out[r] += sum_j w[r][j] table[ids[r][j]] (the
// interpolated position embedding). 128 threads a row, grid (min(rows, 65535)), stride loops.
#include "backend/cuda/kernels/gpu.h"

/// Bytes to what they stand for, table [cols / plane, 256]; also as bf16 at `twin` where it is not null.
KERNEL(byte_values, 128, float* out, u16* twin, const u8* bytes, const float* table, int plane, int rows, int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    for (int i = tid_x(); i < cols; i += 128) {
      const u64 at = (u64)r * (u64)cols + (u64)i;
      const float v = table[i / plane * 256 + bytes[at]];
      out[at] = v;
      if (twin) twin[at] = f32_to_bf16(v);
    }
  }
}
KERNEL(gather_rows, 128, float* out, const float* x, const int* ids, int rows, int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const float* from = x + (u64)ids[r] * (u64)cols;
    for (int i = tid_x(); i < cols; i += 128) out[(u64)r * (u64)cols + (u64)i] = from[i];
  }
}
KERNEL(scatter_rows, 128, float* out, const float* x, const int* ids, int rows, int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    float* to = out + (u64)ids[r] * (u64)cols;
    for (int i = tid_x(); i < cols; i += 128) to[i] = x[(u64)r * (u64)cols + (u64)i];
  }
}
KERNEL(add_weighted_rows, 128, float* out, const float* table, const int* ids, const float* weights, int per_row, int rows,
       int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    for (int i = tid_x(); i < cols; i += 128) {
      float sum = 0;
      for (int j = 0; j < per_row; j++) {
        const u64 at = (u64)r * (u64)per_row + (u64)j;
        sum = gpu_fma(weights[at], table[(u64)ids[at] * (u64)cols + (u64)i], sum);
      }
      out[(u64)r * (u64)cols + (u64)i] += sum;
    }
  }
}
