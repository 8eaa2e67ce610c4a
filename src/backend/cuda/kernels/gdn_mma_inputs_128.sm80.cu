// What the chunked delta rule on tensor cores reads, in one pass over the projection: the causal convolution with SiLU (gdn_conv.cu),
// the L2 norms of q and k heads (gdn_prepare.cu), and the gates g and beta. v heads go to their columns of conv_out.
// Block of 128 threads a head, thread a channel, kRows consecutive rows in registers; grid (2 nk + nv, ceil(rows / kRows)).
#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/step_table.h"

#if GPU_TIER >= 80

constexpr int kRows = 16, kDim = 128;

KERNEL(gdn_mma_inputs_128, 128, float* q, float* k, float* conv_out, float* g, float* beta, const float* x, const float* weight,
       const float* a, const float* b, const float* dt_bias, const float* neg_exp_a, const StepSequence* sequences,
       const int* row_sequence, int layer, int num_k_heads, int num_v_heads, int rows) {
  SHARED float squares[kRows][kDim + 8], sums[kRows][8];
  const int t = tid_x(), head = bid_x(), first_row = bid_y() * kRows;
  const u64 C = (u64)(2 * num_k_heads + num_v_heads) * kDim, c = (u64)(head * kDim + t);
  const F4 w = ((const F4*)weight)[c];
  float y[kRows], x0 = 0, x1 = 0, x2 = 0;
  int known = -1;  // the sequence that x0..x2 belong to
  UNROLL for (int i = 0; i < kRows; i++) {
    const int r = gpu_min_i(first_row + i, rows - 1);  // rows past the end repeat the last and are not stored
    const int s = row_sequence[r];
    if (s != known) {
      const int first = sequences[s].first_row;
      const float* state = sequences[s].conv + (u64)layer * 4 * C + c;
      x0 = r - 3 >= first ? x[(u64)(r - 3) * C + c] : state[(u64)(4 + r - 3 - first) * C];
      x1 = r - 2 >= first ? x[(u64)(r - 2) * C + c] : state[(u64)(4 + r - 2 - first) * C];
      x2 = r - 1 >= first ? x[(u64)(r - 1) * C + c] : state[(u64)(4 + r - 1 - first) * C];
      known = s;
    }
    const float x3 = x[(u64)r * C + c];
    float sum = w.x * x0;
    sum = gpu_fma(w.y, x1, sum);
    sum = gpu_fma(w.z, x2, sum);
    sum = gpu_fma(w.w, x3, sum);
    y[i] = gpu_silu(sum);
    x0 = x1;
    x1 = x2;
    x2 = x3;
  }
  if (head >= 2 * num_k_heads) {  // the whole block
    UNROLL for (int i = 0; i < kRows; i++) {
      if (first_row + i < rows) conv_out[(u64)(first_row + i) * C + c] = y[i];
    }
    return;
  }
  UNROLL for (int i = 0; i < kRows; i++) squares[i][t] = y[i] * y[i];
  gpu_sync();
  {  // eight threads a row
    const int r = t >> 3, part = t & 7;
    float sum = 0;
    UNROLL for (int i = 0; i < kDim / 8; i++) sum += squares[r][part + 8 * i];
    sums[r][part] = sum;
  }
  gpu_sync();
  const bool is_k = head >= num_k_heads;
  float* to = (is_k ? k : q) + (u64)(is_k ? head - num_k_heads : head) * kDim + (u64)t;
  UNROLL for (int i = 0; i < kRows; i++) {
    const float* s = sums[i];
    const float sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    if (first_row + i < rows) to[(u64)(first_row + i) * (u64)num_k_heads * kDim] = y[i] * gpu_rsqrt_approx(sum + 1e-6f);
  }
  if (head != 0) return;
  for (int i = t; i < kRows * num_v_heads; i += kDim) {
    const int v = i % num_v_heads, r = first_row + i / num_v_heads;
    if (r >= rows) break;
    const u64 at = (u64)r * (u64)num_v_heads + (u64)v;
    g[at] = gdn_log_decay(a[at], dt_bias[v], neg_exp_a[v]);
    beta[at] = gpu_sigmoid(b[at]);
  }
}

#endif
