// Joins the pages' parts that attention_decode left for a (row, head), then multiplies by sigmoid(gate): see attention_decode.h.
#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/kv_cache.h"

KERNEL(attention_combine, 256, const AttentionDecodeArgs p) {
  DYN_SHARED(float, meet);  // [groups][hd]
  const int t = tid_x(), hd = p.head_dim, h = bid_x(), row = p.first_row + bid_y();
  const int quads = hd / 4, groups = 256 / quads, group = t / quads, quad = t % quads;
  gpu_let_next_start();
  gpu_wait_inputs();
  const StepSequence* s = p.sequences + p.row_sequence[row];
  const int pages = (s->past_tokens + row - s->first_row) / kPageTokens + 1;
  const u64 at = ((u64)bid_y() * (u64)p.num_q_heads + (u64)h) * (u64)p.splits;
  const F2* stat = (const F2*)(p.partial_stat + 2 * at);
  float maximum = -3.0e38f;
  for (int i = 0; i < pages; i++) maximum = gpu_max(maximum, stat[i].x);
  F4 sum = F4{0, 0, 0, 0};
  float total = 0;
  if (group < groups) {
    UNROLL4 for (int i = group; i < pages; i += groups) {
      const F2 st = stat[i];
      const float w = gpu_exp(st.x - maximum);
      const F4* from = (const F4*)(p.partial + (at + (u64)i) * (u64)hd) + quad;
      const F4 v = *from;
      total = gpu_fma(w, st.y, total);
      sum.x = gpu_fma(w, v.x, sum.x);
      sum.y = gpu_fma(w, v.y, sum.y);
      sum.z = gpu_fma(w, v.z, sum.z);
      sum.w = gpu_fma(w, v.w, sum.w);
    }
    float* mine = meet + group * (hd + 4);
    mine[4 * quad] = sum.x;
    mine[4 * quad + 1] = sum.y;
    mine[4 * quad + 2] = sum.z;
    mine[4 * quad + 3] = sum.w;
    if (quad == 0) mine[hd] = total;
  }
  gpu_sync();
  for (int d = t; d < hd; d += 256) {
    float v = 0, l = 0;
    for (int g = 0; g < groups; g++) {
      v += meet[g * (hd + 4) + d];
      l += meet[g * (hd + 4) + hd];
    }
    const u64 head_at = (u64)row * (u64)p.num_q_heads + (u64)h;
    p.out[head_at * (u64)hd + (u64)d] = v / l * gpu_sigmoid(p.q_gate[head_at * (u64)(2 * hd) + (u64)(hd + d)]);
  }
}
