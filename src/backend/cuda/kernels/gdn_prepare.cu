// What the chunked delta rule (and verify's taps) need per token: q and k of each key head L2-normalised, x * rsqrt(sum x^2 +
// 1e-6); log decay g = -exp(A_log) softplus(a + dt_bias); beta = sigmoid(b). Block of D threads a (key head, row), grid (nk,
// min(rows, 65535)); the gates are done by the blocks of key head 0, rows of a and b lie `gate_stride` floats apart.
#include "backend/cuda/kernels/gdn_math.h"

template <int D>
DEVICE void gdn_prepare(float* q_out, float* k_out, float* g_out, float* beta_out, const float* conv_out, const float* a,
                        const float* b, const float* dt_bias, const float* neg_exp_a, int num_k_heads, int num_v_heads,
                        int rows, int gate_stride) {
  SHARED float q[D], k[D];
  SHARED F4 scratch4[16];
  float* scratch = (float*)scratch4;
  gpu_wait_inputs();
  const int t = tid_x(), h = bid_x();
  const u64 channels = (u64)(2 * num_k_heads + num_v_heads) * D;
  for (int r = bid_y(); r < rows; r += nbid_y()) {
    const float* row = conv_out + (u64)r * channels;
    gpu_sync();
    q[t] = row[h * D + t];
    k[t] = row[(num_k_heads + h) * D + t];
    gpu_sync();
    if (t < 32) {
      square_sums<D>(q, t, scratch);
      square_sums<D>(k, t, scratch + 32);
    }
    gpu_sync();
    const u64 to = ((u64)r * (u64)num_k_heads + (u64)h) * D + (u64)t;
    q_out[to] = q[t] * gpu_rsqrt_approx(sum_of_32(scratch) + 1e-6f);
    k_out[to] = k[t] * gpu_rsqrt_approx(sum_of_32(scratch + 32) + 1e-6f);
    if (h == 0) {
      for (int v = t; v < num_v_heads; v += D) {
        const u64 at = (u64)r * (u64)num_v_heads + (u64)v;
        const u64 from = (u64)r * (u64)gate_stride + (u64)v;
        g_out[at] = gdn_log_decay(a[from], dt_bias[v], neg_exp_a[v]);
        beta_out[at] = gpu_sigmoid(b[from]);
      }
    }
  }
}
#define PREPARE(D)                                                                                                       \
  KERNEL(gdn_prepare_##D, D, float* q, float* k, float* g, float* beta, const float* conv_out, const float* a, const float* b, \
         const float* dt_bias, const float* neg_exp_a, int num_k_heads, int num_v_heads, int rows, int gate_stride) {    \
    gdn_prepare<D>(q, k, g, beta, conv_out, a, b, dt_bias, neg_exp_a, num_k_heads, num_v_heads, rows, gate_stride);     \
  }
PREPARE(32)
PREPARE(64)
PREPARE(128)
