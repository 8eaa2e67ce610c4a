// Between the attention layer's input projections and the softmax: RMS norm of each q and k head, rotary embedding (rotate-half)
// on the first rotary_dim dimensions, K and V written into the sequence's pages.
// q_gate [T, nh, 2, hd] holds query and gate of each head. Block of 128 threads a (row, head), heads being nh queries, nkv keys,
// nkv values: grid (nh + 2 nkv, min(rows, 65535)). Head row in dynamic shared memory (4 hd bytes).
#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/block_reduce.h"
#include "backend/cuda/kernels/kv_cache.h"

KERNEL(attention_prepare, 128, const AttentionPrepareArgs p) {
  DYN_SHARED(float, x);
  SHARED F4 scratch4[40];
  const int t = tid_x(), nh = p.num_q_heads, nkv = p.num_kv_heads, hd = p.head_dim;
  const int head = bid_x(), half = p.rotary_dim / 2;
  gpu_let_next_start();
  gpu_wait_inputs();
  for (int r = bid_y(); r < p.rows; r += nbid_y()) {
    const StepSequence* s = p.sequences + p.row_sequence[r];
    const int position = s->past_tokens + r - s->first_row;
    u8* page = s->pages[position / kPageTokens];
    const u64 in_page = (u64)(position % kPageTokens) * (u64)hd;
    if (head >= nh + nkv) {  // a value head: only stored
      const int h = head - nh - nkv;
      const u64 to = kv_offset(p.layer, 1, h, nkv, hd) + in_page;
      for (int i = t; i < hd; i += 128) kv_store(page, to + (u64)i, p.kv_type, p.v[((u64)r * (u64)nkv + (u64)h) * (u64)hd + (u64)i]);
      continue;
    }
    const bool is_k = head >= nh;
    const int h = is_k ? head - nh : head;
    const float* in = is_k ? p.k + ((u64)r * (u64)nkv + (u64)h) * (u64)hd : p.q_gate + ((u64)r * (u64)nh + (u64)h) * (u64)(2 * hd);
    float sum = 0;
    gpu_sync();
    for (int i = t; i < hd; i += 128) {
      const float v = in[i];
      x[i] = v;
      sum = gpu_fma(v, v, sum);
    }
    const float scale = gpu_rsqrt_approx(block_reduce<128>(sum, (float*)scratch4, Sum()) / (float)hd + p.eps);
    const float* weight = is_k ? p.k_weight : p.q_weight;
    const u64 at = ((u64)r * (u64)(is_k ? nkv : nh) + (u64)h) * (u64)hd;
    float* tap = is_k ? p.tap_k_norm : p.tap_q_norm;
    for (int i = t; i < hd; i += 128) {
      x[i] = x[i] * scale * weight[i];
      if (tap) tap[at + (u64)i] = x[i];
      if (!is_k && p.tap_gate) p.tap_gate[at + (u64)i] = in[hd + i];
    }
    gpu_sync();
    const u64 to = kv_offset(p.layer, 0, h, nkv, hd) + in_page;
    for (int i = t; i < hd; i += 128) {
      float v = x[i];
      if (i < p.rotary_dim) {
        const u64 angle = (u64)r * (u64)half + (u64)(i < half ? i : i - half);
        const float other = i < half ? -x[i + half] : x[i - half];
        v = gpu_fma(other, p.rope_sin[angle], v * p.rope_cos[angle]);
      }
      if (is_k) {
        kv_store(page, to + (u64)i, p.kv_type, v);
        if (p.tap_k_rope) p.tap_k_rope[at + (u64)i] = v;
      } else {
        p.q_out[at + (u64)i] = v;
      }
    }
  }
}
