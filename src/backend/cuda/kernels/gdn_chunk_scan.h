// Second phase of the chunked gated delta rule: the walk over the chunks of a sequence (gdn_chunk_intra.cu made u, w, attention
// and G). For each chunk, with S the state before it:
//   v' = u - w S;   y = exp(G_i) (q_i D^-1/2) S + attention v';   S = exp(G_end) S + sum_i exp(G_end - G_i) k_i v'_i^T
// Columns of S are independent: grid (D / 32 slices, nv, sequences), 256 threads, a slice [D][32] of S in shared memory for the
// whole walk. Operands pass through shared memory in steps of 16. 41 KB shared; 4x2 results a thread in the first two products
// and 16 (D = 128) in the last.
#pragma once

#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gdn_math.h"

constexpr int kPitch = 68;   // transposed tiles [16][64]
constexpr int kSlice = 32;
constexpr int kVPitch = 36;  // v' [64][32]

template <int D>
DEVICE void gdn_chunk_scan(const GdnChunkArgs& p) {
  // left4 holds two transposed tiles, or [16][D] of k
  SHARED F4 state4[D * kSlice / 4], left4[2 * 16 * kPitch / 4], v4[64 * kVPitch / 4];
  SHARED float G[64];
  float *S = (float*)state4, *ws = (float*)left4, *qs = ws + 16 * kPitch, *V = (float*)v4;
  float* ks = (float*)left4;  // [16][D] in the last product, when ws and qs are done with
  gpu_wait_inputs();
  const StepSequence s = p.sequences[bid_z()];
  if (s.num_rows <= p.recurrent_rows) return;  // the whole block
  const int t = tid_x(), h = bid_y(), c0 = bid_x() * kSlice;
  const int kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads;
  float* state = s.recurrent + ((u64)p.layer * nv + (u64)h) * D * D + (u64)c0;
  for (int i = t; i < D * kSlice; i += 256) S[i] = state[(u64)(i / kSlice) * D + (u64)(i % kSlice)];
  const int tx = t & 15, ty = t >> 4, row = t >> 2, col = (t & 3) * 4;
  const float head_scale = D == 128 ? 0.0883883476f : D == 64 ? 0.125f : 0.176776695f;

  const int last_token = s.past_tokens + s.num_rows;
  for (int begin = s.past_tokens; begin < last_token;) {
    const int end = gpu_min_i(last_token, begin / 64 * 64 + 64), n = end - begin;
    const u64 row0 = (u64)(s.first_row + begin - s.past_tokens);
    gpu_sync();
    if (t < 64) G[t] = t < n ? p.cumulative[(row0 + (u64)t) * nv + (u64)h] : 0.0f;
    // w S and q S: rows 4 ty .., columns 2 tx ..
    float wS[4][2], qS[4][2];
    UNROLL for (int i = 0; i < 4; i++) wS[i][0] = wS[i][1] = qS[i][0] = qS[i][1] = 0;
    NO_UNROLL for (int d0 = 0; d0 < D; d0 += 16) {
      const u64 r = row0 + (u64)gpu_min_i(row, n - 1);
      const F4 wv = *(const F4*)(p.w + (r * nv + (u64)h) * D + (u64)(d0 + col));
      const F4 qv = *(const F4*)(p.q + (r * nk + (u64)kh) * D + (u64)(d0 + col));
      gpu_sync();
      ws[col * kPitch + row] = wv.x;
      ws[(col + 1) * kPitch + row] = wv.y;
      ws[(col + 2) * kPitch + row] = wv.z;
      ws[(col + 3) * kPitch + row] = wv.w;
      qs[col * kPitch + row] = qv.x;
      qs[(col + 1) * kPitch + row] = qv.y;
      qs[(col + 2) * kPitch + row] = qv.z;
      qs[(col + 3) * kPitch + row] = qv.w;
      gpu_sync();
      UNROLL4 for (int d = 0; d < 16; d++) {
        const F4 a = left4[d * (kPitch / 4) + ty], b = left4[(16 + d) * (kPitch / 4) + ty];
        const F2 c = *(const F2*)(S + (d0 + d) * kSlice + 2 * tx);
        const float x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
        UNROLL for (int i = 0; i < 4; i++) {
          wS[i][0] = gpu_fma(x[i], c.x, wS[i][0]);
          wS[i][1] = gpu_fma(x[i], c.y, wS[i][1]);
          qS[i][0] = gpu_fma(y[i], c.x, qS[i][0]);
          qS[i][1] = gpu_fma(y[i], c.y, qS[i][1]);
        }
      }
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = 4 * ty + i;
      const float q_decay = gpu_exp(G[r]) * head_scale;
      F2 u = F2{0, 0};
      if (r < n) u = *(const F2*)(p.u + ((row0 + (u64)r) * nv + (u64)h) * D + (u64)(c0 + 2 * tx));
      V[r * kVPitch + 2 * tx] = r < n ? u.x - wS[i][0] : 0.0f;
      V[r * kVPitch + 2 * tx + 1] = r < n ? u.y - wS[i][1] : 0.0f;
      qS[i][0] *= q_decay;
      qS[i][1] *= q_decay;
    }
    // y += attention v'
    for (int j0 = 0; j0 < n; j0 += 16) {
      F4 av = F4{0, 0, 0, 0};
      if (row < n) av = *(const F4*)(p.attention + ((row0 + (u64)row) * nv + (u64)h) * 64 + (u64)(j0 + col));
      gpu_sync();
      ws[col * kPitch + row] = av.x;
      ws[(col + 1) * kPitch + row] = av.y;
      ws[(col + 2) * kPitch + row] = av.z;
      ws[(col + 3) * kPitch + row] = av.w;
      gpu_sync();
      UNROLL4 for (int j = 0; j < 16; j++) {
        const F4 a = left4[j * (kPitch / 4) + ty];
        const F2 c = *(const F2*)(V + (j0 + j) * kVPitch + 2 * tx);
        const float x[4] = {a.x, a.y, a.z, a.w};
        UNROLL for (int i = 0; i < 4; i++) {
          qS[i][0] = gpu_fma(x[i], c.x, qS[i][0]);
          qS[i][1] = gpu_fma(x[i], c.y, qS[i][1]);
        }
      }
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = 4 * ty + i;
      if (r < n) *(F2*)(p.core_out + ((row0 + (u64)r) * nv + (u64)h) * D + (u64)(c0 + 2 * tx)) = F2{qS[i][0], qS[i][1]};
    }
    // S = exp(G_end) S + k^T (decayed v'): rows ty + 16 i, columns 2 tx ..
    const float end_decay = gpu_exp(G[n - 1]);
    float add[D / 16][2];
    UNROLL for (int i = 0; i < D / 16; i++) add[i][0] = add[i][1] = 0;
    for (int j0 = 0; j0 < n; j0 += 16) {
      gpu_sync();
      for (int i = t; i < 16 * D; i += 256) {
        const int j = j0 + i / D;
        ks[i] = j < n ? p.k[((row0 + (u64)j) * nk + (u64)kh) * D + (u64)(i % D)] * gpu_exp(G[n - 1] - G[j]) : 0.0f;
      }
      gpu_sync();
      UNROLL2 for (int j = 0; j < 16; j++) {
        const F2 c = *(const F2*)(V + (j0 + j) * kVPitch + 2 * tx);
        UNROLL for (int i = 0; i < D / 16; i++) {
          const float kv = ks[j * D + ty + 16 * i];
          add[i][0] = gpu_fma(kv, c.x, add[i][0]);
          add[i][1] = gpu_fma(kv, c.y, add[i][1]);
        }
      }
    }
    UNROLL for (int i = 0; i < D / 16; i++) {
      F2* cell = (F2*)(S + (ty + 16 * i) * kSlice + 2 * tx);
      const F2 old = *cell;
      *cell = F2{gpu_fma(end_decay, old.x, add[i][0]), gpu_fma(end_decay, old.y, add[i][1])};
    }
    begin = end;
  }
  gpu_sync();
  for (int i = t; i < D * kSlice; i += 256) state[(u64)(i / kSlice) * D + (u64)(i % kSlice)] = S[i];
}
