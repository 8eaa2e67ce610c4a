// One token of the delta rule (gdn_recurrent.h has the formulas) for heads whose convolution, gates and SiLU token_rows has applied. A block
// of 256 threads takes 32 columns of a head's state, a warp an eighth of its rows, eight lanes a row (128 bytes); the state is in
// registers before the inputs are there. All sums are of what is there before the step, so that one barrier does: with S' = exp(g) S,
// S'^T k = exp(g) S^T k, and y = (S' + k delta^T)^T q = exp(g) S^T q + (k q) delta. The gated norm needs the whole head: outputs go out
// without its scale, their squares beside them, and the next product applies it to its input. grid: D / 32 a value head.
#pragma once

#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/quads.h"
#include "backend/cuda/kernels/token_args.h"
#include "backend/cuda/kernels/warp_sums.h"

/// Sums of each warp's rows.
struct GdnTokenShared {
  static constexpr int kWarps = kGdnTokenThreads / 32;
  F4 sums[kWarps][2][kGdnTokenColumns / 4];  // of S^T k and of S^T q
  float dots[3][kWarps];                     // q q, k k, k q
};
DEVICE float dots_total(const GdnTokenShared& shared, int which) {
  float sum = shared.dots[which][0];
  UNROLL for (int w = 1; w < GdnTokenShared::kWarps; w++) sum += shared.dots[which][w];
  return sum;
}

template <int D>
DEVICE void gdn_token(const GdnTokenArgs& p, GdnTokenShared& shared) {
  constexpr int kParts = D / kGdnTokenColumns, kWarps = GdnTokenShared::kWarps, kRows = D / kWarps / 4;
  const int t = tid_x(), lane = t & 31, warp = t >> 5, quad = lane & 7, head = bid_x() / kParts, part = bid_x() % kParts;
  const int key_head = key_head_of(head, p.num_k_heads, p.num_v_heads, p.tiled), row = warp * 4 * kRows + (lane >> 3);
  const int column = part * kGdnTokenColumns + 4 * quad, finishes = part * kGdnTokenColumns + lane;
  // The state was left by the step before.
  float* state = p.sequence->recurrent + ((u64)(u32)p.layer * (u64)(u32)p.num_v_heads + (u64)(u32)head) * D * D + (u64)(u32)(row * D + column);
  F4 s[kRows];
  UNROLL for (int i = 0; i < kRows; i++) s[i] = *(const F4*)(state + i * 4 * D);
  const float norm = p.norm[finishes];

  gpu_wait_inputs();
  const float *q_in = p.conv_out + key_head * D + row, *k_in = q_in + p.num_k_heads * D;
  const float* v_in = p.conv_out + (2 * p.num_k_heads + head) * D;
  float q[kRows], k[kRows];
  UNROLL for (int i = 0; i < kRows; i++) {
    q[i] = q_in[4 * i];
    k[i] = k_in[4 * i];
  }
  const F4 v = *(const F4*)(v_in + column);
  const float v_finishes = v_in[finishes], gate = p.z[head * D + finishes] * norm, decay = p.decay[head], beta = p.beta[head];
  float qq = 0, kk = 0, kq = 0;
  F4 sk = F4{0, 0, 0, 0}, sq = F4{0, 0, 0, 0};
  UNROLL for (int i = 0; i < kRows; i++) {
    qq = gpu_fma(q[i], q[i], qq);
    kk = gpu_fma(k[i], k[i], kk);
    kq = gpu_fma(k[i], q[i], kq);
    add_scaled(sk, s[i], k[i]);
    add_scaled(sq, s[i], q[i]);
  }
  gpu_let_next_start();
  // Over the four rows of a warp: lanes with bit 3 end with the sums of q, with bit 4 with the upper pair.
  const bool of_q = lane & 8, upper = lane & 16;
  F4 sum;
  sum.x = (of_q ? sq.x : sk.x) + gpu_shuffle_xor(of_q ? sk.x : sq.x, 8);
  sum.y = (of_q ? sq.y : sk.y) + gpu_shuffle_xor(of_q ? sk.y : sq.y, 8);
  sum.z = (of_q ? sq.z : sk.z) + gpu_shuffle_xor(of_q ? sk.z : sq.z, 8);
  sum.w = (of_q ? sq.w : sk.w) + gpu_shuffle_xor(of_q ? sk.w : sq.w, 8);
  F2 two;
  two.x = (upper ? sum.z : sum.x) + gpu_shuffle_xor(upper ? sum.x : sum.z, 16);
  two.y = (upper ? sum.w : sum.y) + gpu_shuffle_xor(upper ? sum.y : sum.w, 16);
  float own = (of_q ? kk : qq) + gpu_shuffle_xor(of_q ? qq : kk, 8);
  own += gpu_shuffle_xor(own, 16);
  kq += gpu_shuffle_xor(kq, 8);
  kq += gpu_shuffle_xor(kq, 16);
  F2* to = (F2*)&shared.sums[warp][of_q][quad] + (upper ? 1 : 0);
  to->x = two.x;
  to->y = two.y;
  if (quad == 0 && !upper) shared.dots[of_q][warp] = own;
  if (lane == 0) shared.dots[2][warp] = kq;
  gpu_sync();

  const float head_scale = D == 128 ? 0.0883883476f : 0.125f;  // D^-1/2
  const float k_scale = gpu_rsqrt_approx(dots_total(shared, 1) + 1e-6f), scaled_beta = beta * k_scale, scaled_decay = decay * k_scale;
  if (gpu_warp_has(warp == 0)) {  // a column a lane
    float of_k = 0, of_q_here = 0;
    UNROLL for (int w = 0; w < kWarps; w++) {
      of_k += ((const float*)shared.sums[w][0])[lane];
      of_q_here += ((const float*)shared.sums[w][1])[lane];
    }
    const float delta = (v_finishes - scaled_decay * of_k) * scaled_beta;  // times k as it is
    const float q_scale = gpu_rsqrt_approx(dots_total(shared, 0) + 1e-6f) * head_scale;
    const float y = q_scale * gpu_fma(dots_total(shared, 2), delta, decay * of_q_here);
    const float squares = warp_total(y * y);
    if (warp == 0) p.out[head * D + finishes] = y * gate;
    if (t == 0) p.squares[bid_x()] = squares;
  }
  F4 of_k = F4{0, 0, 0, 0};
  UNROLL for (int w = 0; w < kWarps; w++) {
    const F4 one = shared.sums[w][0][quad];
    of_k.x += one.x;
    of_k.y += one.y;
    of_k.z += one.z;
    of_k.w += one.w;
  }
  const F4 delta = F4{(v.x - scaled_decay * of_k.x) * scaled_beta, (v.y - scaled_decay * of_k.y) * scaled_beta,
                      (v.z - scaled_decay * of_k.z) * scaled_beta, (v.w - scaled_decay * of_k.w) * scaled_beta};
  UNROLL for (int i = 0; i < kRows; i++) {
    F4* after = (F4*)(state + i * 4 * D);
    after->x = gpu_fma(k[i], delta.x, decay * s[i].x);
    after->y = gpu_fma(k[i], delta.y, decay * s[i].y);
    after->z = gpu_fma(k[i], delta.z, decay * s[i].z);
    after->w = gpu_fma(k[i], delta.w, decay * s[i].w);
  }
}
