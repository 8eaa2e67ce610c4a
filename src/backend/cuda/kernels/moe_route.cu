// Router: softmax over all experts of a row's logits, the top_k largest (lower index first among equals), renormalised to sum
// 1. Block of 128 threads a row, grid (min(rows, 65535)); up to 1024 experts in shared memory (4 KB). Each thread counts how many
// experts come before its own: no barrier, where top_k passes of a tree argmax have 8 each (12 us for the top 8 of 128 on an H200).
#include "backend/cuda/kernels/block_reduce.h"

KERNEL(moe_route, 128, int* ids, float* weights, const float* logits, int rows, int experts, int top_k) {
  SHARED F4 p4[256], scratch4[40];
  SHARED float chosen[64];
  float *p = (float*)p4, *scratch = (float*)scratch4;
  const int t = tid_x(), padded = (experts + 3) / 4 * 4;
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const float* row = logits + (u64)r * (u64)experts;
    float maximum = -3.0e38f, sum = 0;
    for (int i = t; i < experts; i += 128) maximum = gpu_max(maximum, row[i]);
    maximum = block_reduce<128>(maximum, scratch, Max());
    for (int i = t; i < experts; i += 128) {
      p[i] = gpu_exp(row[i] - maximum);
      sum += p[i];
    }
    sum = block_reduce<128>(sum, scratch, Sum());
    for (int i = t; i < padded; i += 128) {
      const float v = i < experts ? p[i] / sum : -2.0f;
      p[i] = v >= 0 || i >= experts ? v : -1.0f;  // NaN logits: any experts, the result is NaN anyway
    }
    gpu_sync();
    for (int e = t; e < experts; e += 128) {
      const float mine = p[e];
      int rank = 0;
      for (int j = 0; j < padded / 4; j++) {
        const F4 v = p4[j];
        rank += v.x > mine || (v.x == mine && 4 * j < e);
        rank += v.y > mine || (v.y == mine && 4 * j + 1 < e);
        rank += v.z > mine || (v.z == mine && 4 * j + 2 < e);
        rank += v.w > mine || (v.w == mine && 4 * j + 3 < e);
      }
      if (rank < top_k) {
        chosen[rank] = mine;
        ids[r * top_k + rank] = e;
      }
    }
    gpu_sync();
    if (t < top_k) {
      float total = 0;
      for (int k = 0; k < top_k; k++) total += chosen[k];
      weights[r * top_k + t] = chosen[t] / total;
    }
    gpu_sync();
  }
}
