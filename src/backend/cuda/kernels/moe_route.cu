// Router: softmax over all experts of a row's logits, the top_k largest (lower index first among equals), renormalised to sum
// 1. Block of 128 threads a row, grid (min(rows, 65535)); up to 1024 experts in shared memory (4 KB); top_k passes of an argmax.
#include "backend/cuda/kernels/block_reduce.h"

KERNEL(moe_route, 128, int* ids, float* weights, const float* logits, int rows, int experts, int top_k) {
  SHARED float p[1024];
  SHARED F4 scratch4[40];
  SHARED float best_value[128];
  SHARED int best_index[128];
  SHARED float chosen[64];
  float* scratch = (float*)scratch4;
  const int t = tid_x();
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
    for (int i = t; i < experts; i += 128) p[i] = p[i] / sum;
    for (int k = 0; k < top_k; k++) {
      float value = -1.0f;
      int index = 0x7fffffff;
      for (int i = t; i < experts; i += 128) {
        if (p[i] > value) {
          value = p[i];
          index = i;
        }
      }
      best_value[t] = value;
      best_index[t] = index;
      for (int step = 64; step > 0; step /= 2) {
        gpu_sync();
        if (t < step) {
          const float v = best_value[t + step];
          const int i = best_index[t + step];
          if (v > best_value[t] || (v == best_value[t] && i < best_index[t])) {
            best_value[t] = v;
            best_index[t] = i;
          }
        }
      }
      gpu_sync();
      if (t == 0) {
        const int winner = best_index[0] < experts ? best_index[0] : k;  // all NaN: any expert, the result is NaN anyway
        ids[r * top_k + k] = winner;
        chosen[k] = best_value[0];
        p[winner] = -2.0f;
      }
      gpu_sync();
    }
    if (t < top_k) {
      float total = 0;
      for (int k = 0; k < top_k; k++) total += chosen[k];
      weights[r * top_k + t] = chosen[t] / total;
    }
    gpu_sync();
  }
}
