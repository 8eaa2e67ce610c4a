// Second phase of the chunked gated delta rule: the walk over the chunks of a sequence (gdn_chunk_intra.h made u, w, attention
// and G; outputs are gdn_chunk_output.h's, which nothing here waits for). For each chunk, with S the state before it:
//   v' = u - w S, left in u's place;   S, left for the outputs;   S = exp(G_end) S + sum_i exp(G_end - G_i) k_i v'_i^T
// Columns of S are independent: grid (D / 16 slices, nv, sequences), 256 threads, a slice of S in shared memory for the whole walk.
// What bounds it is latency, since only S / 16 blocks a head walk at once: a chunk is two steps of w (64 rows by 64 columns) and two of k (32 rows),
// each loaded to registers while the step before it is computed. With four times as many steps, and outputs in the same walk, a
// chunk took 13 us on an H200.
// 32 KB shared; 4 rows by one column a thread in the first product, D / 16 rows in the second.
// A state capture inside a chunk is the last line with the sum ended there: v' of its rows does not depend on later ones, so the
// captured state is what a prompt cut there would leave, and the walk itself is not cut. That is a kernel of its own
// (gdn_chunk_capture_<D>): prompts without captures do not pay for its registers.
#pragma once

#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gdn_chunk.h"
#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/quads.h"

constexpr int kSlice = 16;
constexpr int kVPitch = 20;  // v' [64][16]

template <int D, bool Captures>
DEVICE void gdn_chunk_scan(const GdnChunkArgs& p) {
  constexpr int kStep = D < 64 ? D : 64, kPitch = kStep + 4, kKeyRows = 32, kSPitch = D + 4;
  constexpr int kLoads = kStep / 16, kKeyLoads = D / 32, kRows = D / 16;  // F4s of a tile of w and of k, rows of S, a thread
  constexpr int kTile = 64 * kPitch > kKeyRows * D ? 64 * kPitch : kKeyRows * D;
  SHARED F4 tile4[kTile / 4], S4[kSlice * kSPitch / 4];
  SHARED float V[64 * kVPitch], G[64], capture_decay[64];
  float *tile = (float*)tile4, *S = (float*)S4;  // S by columns: S[column * kSPitch + row]
  gpu_wait_inputs();
  const StepSequence s = p.sequences[bid_z()];
  if (s.num_rows <= p.recurrent_rows) return;  // the whole block
  const int t = tid_x(), h = bid_y(), c0 = bid_x() * kSlice;
  const int kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads;
  float* state = s.recurrent + ((u64)p.layer * nv + (u64)h) * D * D + (u64)c0;
  for (int i = t; i < D * kSlice; i += 256) S[i % kSlice * kSPitch + i / kSlice] = state[(u64)(i / kSlice) * D + (u64)(i % kSlice)];
  const int tx = t & 15, ty = t >> 4, row = t >> 2, col = (t & 3) * 4;

  const int last_token = s.past_tokens + s.num_rows;
  u64 slot = (u64)gdn_slot(s, bid_z(), 0);
  int capture = 0;
  const auto end_of = [&](int begin) { return gpu_min_i(last_token, begin / 64 * 64 + 64); };
  const auto row_of = [&](int begin) { return (u64)(s.first_row + begin - s.past_tokens); };
  F4 next[kLoads > kKeyLoads ? kLoads : kKeyLoads];  // the next step's tile
  float next_g = 0;
  const auto fetch_w = [&](int begin, int d0) {
    const u64 at = row_of(begin) + (u64)gpu_min_i(row, end_of(begin) - begin - 1);
    UNROLL for (int i = 0; i < kLoads; i++) next[i] = load_f4(p.w + (at * nv + (u64)h) * D + (u64)(d0 + col + 16 * i));
  };
  const auto fetch_g = [&](int begin) {
    const int n = end_of(begin) - begin;
    if (t < 64) next_g = t < n ? p.cumulative[(row_of(begin) + (u64)t) * nv + (u64)h] : 0.0f;
  };
  const auto key_at = [&](int begin, int j0, int i) {
    const int e = t + 256 * i, j = gpu_min_i(j0 + e / (D / 4), end_of(begin) - begin - 1);
    return p.k + ((row_of(begin) + (u64)j) * nk + (u64)kh) * D + (u64)(e % (D / 4) * 4);
  };
  const auto fetch_keys = [&](int begin, int j0) {
    UNROLL for (int i = 0; i < kKeyLoads; i++) next[i] = load_f4(key_at(begin, j0, i));
  };
  // add[i] += k of row ty * kRows + i times v' of column tx, over the rows j0 .. j0 + 31 of the chunk
  const auto add_keys = [&](float (&add)[kRows], int j0, const float* decay) {
    UNROLL4 for (int j = 0; j < kKeyRows; j++) {
      const float c = decay ? V[(j0 + j) * kVPitch + tx] * decay[j0 + j] : V[(j0 + j) * kVPitch + tx];
      const float* keys = tile + j * D + ty * kRows;
      if (kRows % 4 == 0) {
        UNROLL for (int i = 0; i < kRows / 4; i++) {
          const F4 k = ((const F4*)keys)[i];
          add[4 * i] = gpu_fma(k.x, c, add[4 * i]);
          add[4 * i + 1] = gpu_fma(k.y, c, add[4 * i + 1]);
          add[4 * i + 2] = gpu_fma(k.z, c, add[4 * i + 2]);
          add[4 * i + 3] = gpu_fma(k.w, c, add[4 * i + 3]);
        }
      } else {
        UNROLL for (int i = 0; i < kRows; i++) add[i] = gpu_fma(keys[i], c, add[i]);
      }
    }
  };

  fetch_w(s.past_tokens, 0);
  fetch_g(s.past_tokens);
  NO_UNROLL for (int begin = s.past_tokens; begin < last_token; slot++) {
    const int end = end_of(begin), n = end - begin;
    const u64 row0 = row_of(begin);
    // v' = u - w S: rows 4 ty .., column tx
    float u[4], wS[4] = {0, 0, 0, 0};
    UNROLL for (int i = 0; i < 4; i++) u[i] = p.u[((row0 + (u64)gpu_min_i(4 * ty + i, n - 1)) * nv + (u64)h) * D + (u64)(c0 + tx)];
    NO_UNROLL for (int d0 = 0; d0 < D; d0 += kStep) {
      gpu_sync();
      UNROLL for (int i = 0; i < kLoads; i++) store_f4(tile + row * kPitch + col + 16 * i, next[i]);
      if (d0 == 0 && t < 64) G[t] = next_g;
      gpu_sync();
      if (d0 + kStep < D) fetch_w(begin, d0 + kStep);
      else fetch_keys(begin, 0);
      UNROLL2 for (int d = 0; d < kStep; d += 4) {
        const F4 c = load_f4(S + tx * kSPitch + d0 + d);
        UNROLL for (int i = 0; i < 4; i++) {
          const F4 a = load_f4(tile + (4 * ty + i) * kPitch + d);
          wS[i] = gpu_fma(a.x, c.x, wS[i]);
          wS[i] = gpu_fma(a.y, c.y, wS[i]);
          wS[i] = gpu_fma(a.z, c.z, wS[i]);
          wS[i] = gpu_fma(a.w, c.w, wS[i]);
        }
      }
    }
    float* before = p.states + (slot * nv + (u64)h) * D * D + (u64)c0;
    UNROLL for (int i = 0; i < kRows; i++) before[(u64)(ty + 16 * i) * D + (u64)tx] = S[tx * kSPitch + ty + 16 * i];
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = 4 * ty + i;
      u[i] = r < n ? u[i] - wS[i] : 0.0f;
      if (r < n) p.u[((row0 + (u64)r) * nv + (u64)h) * D + (u64)(c0 + tx)] = u[i];
      if (Captures) V[r * kVPitch + tx] = u[i];
    }
    while (Captures && capture < s.num_captures && s.captures[capture].rows <= end - s.past_tokens) {
      const int m = s.captures[capture].rows - (begin - s.past_tokens);
      if (t < 64) capture_decay[t] = t < m ? gpu_exp(G[m - 1] - G[t]) : 0.0f;
      float add[kRows];
      UNROLL for (int i = 0; i < kRows; i++) add[i] = 0;
      NO_UNROLL for (int j0 = 0; j0 < m; j0 += kKeyRows) {
        gpu_sync();
        UNROLL for (int i = 0; i < kKeyLoads; i++) store_f4(tile + 4 * (t + 256 * i), load_f4(key_at(begin, j0, i)));
        gpu_sync();
        add_keys(add, j0, capture_decay);
      }
      float* captured = s.captures[capture].recurrent + ((u64)p.layer * nv + (u64)h) * D * D + (u64)c0;
      const float end_decay = gpu_exp(G[m - 1]);
      UNROLL for (int i = 0; i < kRows; i++) {
        const int r = ty * kRows + i;
        captured[(u64)r * D + (u64)tx] = gpu_fma(end_decay, S[tx * kSPitch + r], add[i]);
      }
      ++capture;
      gpu_sync();  // everyone has read capture_decay and V
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = 4 * ty + i;
      V[r * kVPitch + tx] = r < n ? u[i] * gpu_exp(G[n - 1] - G[r]) : 0.0f;
    }
    const float end_decay = gpu_exp(G[n - 1]);
    float add[kRows];
    UNROLL for (int i = 0; i < kRows; i++) add[i] = 0;
    NO_UNROLL for (int j0 = 0; j0 < n; j0 += kKeyRows) {
      gpu_sync();
      UNROLL for (int i = 0; i < kKeyLoads; i++) store_f4(tile + 4 * (t + 256 * i), next[i]);
      gpu_sync();
      if (j0 + kKeyRows < n) {
        fetch_keys(begin, j0 + kKeyRows);
      } else if (end < last_token) {
        fetch_w(end, 0);
        fetch_g(end);
      }
      add_keys(add, j0, nullptr);
    }
    UNROLL for (int i = 0; i < kRows; i++) {
      float* cell = S + tx * kSPitch + ty * kRows + i;
      *cell = gpu_fma(end_decay, *cell, add[i]);
    }
    begin = end;
  }
  gpu_sync();
  for (int i = t; i < D * kSlice; i += 256) state[(u64)(i / kSlice) * D + (u64)(i % kSlice)] = S[i % kSlice * kSPitch + i / kSlice];
}
