// Second phase of the chunked gated delta rule: the walk over the chunks of a sequence (gdn_chunk_intra.h made u, w, attention
// and G). For each chunk, with S the state before it:
//   v' = u - w S;   y = exp(G_i) (q_i D^-1/2) S + attention v';   S = exp(G_end) S + sum_i exp(G_end - G_i) k_i v'_i^T
// Columns of S are independent: grid (D / 16 slices, nv, sequences), 256 threads, a slice [D][16] of S in shared memory for the
// whole walk. Operands pass through shared memory in steps of 16; none but S depends on the walk, so the next step's operands
// are loaded while this one's are used (without that, the latency of 16 loads a chunk made it 33 us a chunk on an H200).
// 24 KB shared; 4 rows by one column a thread in the first two products, D / 16 rows in the last.
// A state capture inside a chunk is the last line with the sum ended there: v' of its rows does not depend on later ones, so the
// captured state is what a prompt cut there would leave, and the walk itself is not cut. That is a kernel of its own
// (gdn_chunk_capture_<D>): in one it takes 218 registers instead of 128.
#pragma once

#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gdn_math.h"

constexpr int kPitch = 68;   // transposed tiles [16][64]
constexpr int kSlice = 16;
constexpr int kVPitch = 20;  // v' [64][16]

DEVICE F4 load_f4(const float* p) {
  const F4* q = (const F4*)p;
  F4 v;
  v.x = q->x;
  v.y = q->y;
  v.z = q->z;
  v.w = q->w;
  return v;
}
DEVICE void store_transposed(float* tile, int row, int col, F4 v) {
  tile[col * kPitch + row] = v.x;
  tile[(col + 1) * kPitch + row] = v.y;
  tile[(col + 2) * kPitch + row] = v.z;
  tile[(col + 3) * kPitch + row] = v.w;
}

template <int D, bool Captures>
DEVICE void gdn_chunk_scan(const GdnChunkArgs& p) {
  // left4 holds two transposed tiles, or [16][D] of k
  SHARED F4 left4[2 * 16 * kPitch / 4];
  SHARED float S[D * kSlice], V[64 * kVPitch], G[64], end_decay_of[64];
  float *ws = (float*)left4, *qs = ws + 16 * kPitch, *ks = ws;
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
  constexpr int kKeys = 16 * D / 256;  // elements of a [16][D] tile of k that a thread loads

  const int last_token = s.past_tokens + s.num_rows;
  int capture = 0;
  for (int begin = s.past_tokens; begin < last_token;) {
    const int end = gpu_min_i(last_token, begin / 64 * 64 + 64), n = end - begin;
    const u64 row0 = (u64)(s.first_row + begin - s.past_tokens), my_row = row0 + (u64)gpu_min_i(row, n - 1);
    const float* w_row = p.w + (my_row * nv + (u64)h) * D + (u64)col;
    const float* q_row = p.q + (my_row * nk + (u64)kh) * D + (u64)col;
    const float* a_row = p.attention + (my_row * nv + (u64)h) * 64 + (u64)col;
    F4 wv = load_f4(w_row), qv = load_f4(q_row);
    gpu_sync();
    if (t < 64) G[t] = t < n ? p.cumulative[(row0 + (u64)t) * nv + (u64)h] : 0.0f;
    float u[4];
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = gpu_min_i(4 * ty + i, n - 1);
      u[i] = p.u[((row0 + (u64)r) * nv + (u64)h) * D + (u64)(c0 + tx)];
    }
    // w S and q S: rows 4 ty .., column tx
    float wS[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 0};
    F4 av = F4{0, 0, 0, 0};
    NO_UNROLL for (int d0 = 0; d0 < D; d0 += 16) {
      gpu_sync();
      store_transposed(ws, row, col, wv);
      store_transposed(qs, row, col, qv);
      gpu_sync();
      if (d0 + 16 < D) {
        wv = load_f4(w_row + d0 + 16);
        qv = load_f4(q_row + d0 + 16);
      } else {
        av = load_f4(a_row);
      }
      UNROLL for (int d = 0; d < 16; d++) {
        const F4 a = left4[d * (kPitch / 4) + ty], b = left4[(16 + d) * (kPitch / 4) + ty];
        const float c = S[(d0 + d) * kSlice + tx];
        wS[0] = gpu_fma(a.x, c, wS[0]);
        wS[1] = gpu_fma(a.y, c, wS[1]);
        wS[2] = gpu_fma(a.z, c, wS[2]);
        wS[3] = gpu_fma(a.w, c, wS[3]);
        y[0] = gpu_fma(b.x, c, y[0]);
        y[1] = gpu_fma(b.y, c, y[1]);
        y[2] = gpu_fma(b.z, c, y[2]);
        y[3] = gpu_fma(b.w, c, y[3]);
      }
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = 4 * ty + i;
      V[r * kVPitch + tx] = r < n ? u[i] - wS[i] : 0.0f;
      y[i] *= gpu_exp(G[r]) * head_scale;
    }
    // y += attention v'. Rows past the end repeat the last one's attention; their results are not stored.
    float kv[kKeys];
    NO_UNROLL for (int j0 = 0; j0 < n; j0 += 16) {
      gpu_sync();
      store_transposed(ws, row, col, av);
      gpu_sync();
      if (j0 + 16 < n) {
        av = load_f4(a_row + j0 + 16);
      } else {
        UNROLL for (int i = 0; i < kKeys; i++) {
          const int e = t + 256 * i, j = gpu_min_i(e / D, n - 1);
          kv[i] = p.k[((row0 + (u64)j) * nk + (u64)kh) * D + (u64)(e % D)];
        }
      }
      UNROLL for (int j = 0; j < 16; j++) {
        const F4 a = left4[j * (kPitch / 4) + ty];
        const float c = V[(j0 + j) * kVPitch + tx];
        y[0] = gpu_fma(a.x, c, y[0]);
        y[1] = gpu_fma(a.y, c, y[1]);
        y[2] = gpu_fma(a.z, c, y[2]);
        y[3] = gpu_fma(a.w, c, y[3]);
      }
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = 4 * ty + i;
      if (r < n) p.core_out[((row0 + (u64)r) * nv + (u64)h) * D + (u64)(c0 + tx)] = y[i];
    }
    // S = exp(G_end) S + k^T (decayed v'): rows ty + 16 i, column tx; first for the captures of this chunk
    for (;;) {
      const bool inside = Captures && capture < s.num_captures && s.captures[capture].rows <= end - s.past_tokens;
      const int m = inside ? s.captures[capture].rows - (begin - s.past_tokens) : n;
      if (t < 64) end_decay_of[t] = t < m ? gpu_exp(G[m - 1] - G[t]) : 0.0f;
      const float end_decay = gpu_exp(G[m - 1]);
      float add[D / 16];
      UNROLL for (int i = 0; i < D / 16; i++) add[i] = 0;
      NO_UNROLL for (int j0 = 0; j0 < m; j0 += 16) {
        gpu_sync();
        UNROLL for (int i = 0; i < kKeys; i++) ks[t + 256 * i] = kv[i];
        gpu_sync();
        const int next = j0 + 16 < m ? j0 + 16 : 0;
        if (next != 0 || inside) {  // after a capture the first rows are needed again
          UNROLL for (int i = 0; i < kKeys; i++) {
            const int e = t + 256 * i, j = gpu_min_i(next + e / D, n - 1);
            kv[i] = p.k[((row0 + (u64)j) * nk + (u64)kh) * D + (u64)(e % D)];
          }
        }
        UNROLL4 for (int j = 0; j < 16; j++) {
          const float c = V[(j0 + j) * kVPitch + tx] * end_decay_of[j0 + j];  // zero past the end
          UNROLL for (int i = 0; i < D / 16; i++) add[i] = gpu_fma(ks[j * D + ty + 16 * i], c, add[i]);
        }
      }
      if (!inside) {
        UNROLL for (int i = 0; i < D / 16; i++) {
          float* cell = S + (ty + 16 * i) * kSlice + tx;
          *cell = gpu_fma(end_decay, *cell, add[i]);
        }
        break;
      }
      float* captured = s.captures[capture].recurrent + ((u64)p.layer * nv + (u64)h) * D * D + (u64)c0;
      UNROLL for (int i = 0; i < D / 16; i++) {
        const int r = ty + 16 * i;
        captured[r * D + tx] = gpu_fma(end_decay, S[r * kSlice + tx], add[i]);
      }
      ++capture;
      gpu_sync();  // everyone has read end_decay_of
    }
    begin = end;
  }
  gpu_sync();
  for (int i = t; i < D * kSlice; i += 256) state[(u64)(i / kSlice) * D + (u64)(i % kSlice)] = S[i];
}
