// Softmax attention as it is written down, the form that the study measures the others against: a block of 128 threads computes one row
// of one head, and reads keys and values again for every row. grid (min(rows, 65535), heads); the row's scores lie in dynamic shared
// memory, `rows` floats, which bounds a prompt at about 12,000 tokens.
//   row r of q has query heads side by side, those of k and v every `group`-th; q_stride and kv_stride are floats from row to row.
//   causal: row r sees rows 0..r, else all.
#include "backend/cuda/kernels/block_reduce.h"

KERNEL(attention_naive, 128, float* out, const float* q, const float* k, const float* v, int rows, int q_stride, int kv_stride,
       int head_dim, int group, int causal, float scale) {
  DYN_SHARED(float, scores);
  SHARED F4 scratch4[40];
  float* scratch = (float*)scratch4;
  const int t = tid_x(), head = bid_y();
  const u64 kv_at = (u64)(head / group * head_dim);
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const int n = causal ? r + 1 : rows;
    const float* query = q + (u64)r * (u64)q_stride + (u64)(head * head_dim);
    float maximum = -3.0e38f, sum = 0;
    gpu_sync();
    for (int c = t; c < n; c += 128) {
      const float* key = k + (u64)c * (u64)kv_stride + kv_at;
      float dot = 0;
      for (int d = 0; d < head_dim; d++) dot = gpu_fma(query[d], key[d], dot);
      scores[c] = dot * scale;
      maximum = gpu_max(maximum, scores[c]);
    }
    maximum = block_reduce<128>(maximum, scratch, Max());
    for (int c = t; c < n; c += 128) {
      scores[c] = gpu_exp(scores[c] - maximum);
      sum += scores[c];
    }
    sum = block_reduce<128>(sum, scratch, Sum());
    gpu_sync();
    for (int d = t; d < head_dim; d += 128) {
      float value = 0;
      for (int c = 0; c < n; c++) value = gpu_fma(scores[c], v[(u64)c * (u64)kv_stride + kv_at + (u64)d], value);
      out[(u64)r * (u64)q_stride + (u64)(head * head_dim) + (u64)d] = value / sum;
    }
  }
}
