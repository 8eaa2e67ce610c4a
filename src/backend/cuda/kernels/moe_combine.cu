// End of an MoE layer: out[t] = sum_k weight[t][k] y[t][k] + sigmoid(shared_logit[t]) * shared[t], and the taps of verify and
// pruning. Block of 256 threads a row, grid (min(rows, 65535)). The sum runs over k in order.
#include "backend/cuda/kernels/block_reduce.h"

KERNEL(moe_combine, 256, float* out, const float* y, const float* weights, const float* shared, const float* shared_logit,
       float* tap_experts, float* tap_norms, int rows, int top_k, int cols) {
  SHARED F4 scratch4[72];
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const float gate = shared ? gpu_sigmoid(shared_logit[r]) : 0.0f;
    for (int i = tid_x(); i < cols; i += 256) {
      // Without weights y is the sum already (experts that the host computed).
      float sum = weights ? 0.0f : y[(u64)r * (u64)cols + (u64)i];
      for (int k = 0; weights && k < top_k; k++) {
        sum = gpu_fma(weights[r * top_k + k], y[((u64)r * (u64)top_k + (u64)k) * (u64)cols + (u64)i], sum);
      }
      const u64 to = (u64)r * (u64)cols + (u64)i;
      if (tap_experts) tap_experts[to] = sum;
      out[to] = shared ? gpu_fma(gate, shared[to], sum) : sum;
    }
    if (tap_norms) {
      for (int k = 0; k < top_k; k++) {
        float squares = 0;
        for (int i = tid_x(); i < cols; i += 256) {
          const float v = y[((u64)r * (u64)top_k + (u64)k) * (u64)cols + (u64)i];
          squares = gpu_fma(v, v, squares);
        }
        squares = block_reduce<256>(squares, (float*)scratch4, Sum());
        if (tid_x() == 0) tap_norms[r * top_k + k] = gpu_sqrt(squares);
      }
    }
  }
}
