// Third phase of the chunked gated delta rule: the outputs of all chunks and heads at once, from what the walk left (gdn_chunk_scan.h).
//   y_i = exp(G_i) D^-1/2 q_i S + sum_j attention_ij v'_j
// Grid (chunks, nv, sequences), 256 threads; 4 rows by D / 16 columns a thread, operands through shared memory in steps of 32 (25 KB).
#pragma once

#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gdn_chunk.h"
#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/quads.h"

constexpr int kGdnStep = 32, kGdnPitch = kGdnStep + 4;

/// y += left right for 32 columns of the left operand from `at` on: its row r lies at from + r * stride, that of the right one at rows + r * rows_stride.
/// Rows past the end (n, last_row) repeat the last one. `left4`, `right4`: shared tiles [64][32] and [32][D].
template <int D>
DEVICE void gdn_multiply(float (&y)[4][D / 16], F4* left4, F4* right4, const float* from, u64 stride, int at, int n, const float* rows, u64 rows_stride,
                         int last_row) {
  float *left = (float*)left4, *right = (float*)right4;
  const int t = tid_x(), tx = t & 15, ty = t >> 4;
  gpu_sync();
  UNROLL for (int i = 0; i < 2; i++) {
    const int e = t + 256 * i, r = e / (kGdnStep / 4), c = e % (kGdnStep / 4) * 4;
    store_f4(left + r * kGdnPitch + c, load_f4(from + (u64)gpu_min_i(r, n - 1) * stride + (u64)(at + c)));
  }
  UNROLL for (int i = 0; i < D / 32; i++) {
    const int e = t + 256 * i, r = gpu_min_i(at + e / (D / 4), last_row), c = e % (D / 4) * 4;
    store_f4(right + 4 * e, load_f4(rows + (u64)r * rows_stride + (u64)c));
  }
  gpu_sync();
  NO_UNROLL for (int d = 0; d < kGdnStep; d += 4) {
    F4 a[4];
    UNROLL for (int i = 0; i < 4; i++) a[i] = load_f4(left + (4 * ty + i) * kGdnPitch + d);
    UNROLL for (int k = 0; k < 4; k++) {
      UNROLL for (int c = 0; c < D / 16; c++) {
        const float b = right[(d + k) * D + tx + 16 * c];
        UNROLL for (int i = 0; i < 4; i++) y[i][c] = gpu_fma(k == 0 ? a[i].x : k == 1 ? a[i].y : k == 2 ? a[i].z : a[i].w, b, y[i][c]);
      }
    }
  }
}

template <int D>
DEVICE void gdn_chunk_output(const GdnChunkArgs& p) {
  constexpr int kCols = D / 16;
  SHARED F4 left4[64 * kGdnPitch / 4], right4[kGdnStep * D / 4];
  gpu_wait_inputs();
  const StepSequence s = p.sequences[bid_z()];
  const int t = tid_x(), h = bid_y(), kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const GdnChunk chunk = gdn_chunk_of(s, bid_z(), bid_x());
  const int n = chunk.rows;
  if (n <= 0 || s.num_rows <= p.recurrent_rows) return;  // the whole block
  const u64 row0 = chunk.row0;
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads;
  const int tx = t & 15, ty = t >> 4;
  float y[4][kCols];
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int c = 0; c < kCols; c++) y[i][c] = 0;
  }
  const float* before = p.states + (chunk.slot * nv + (u64)h) * D * D;
  NO_UNROLL for (int d0 = 0; d0 < D; d0 += kGdnStep) {
    gdn_multiply<D>(y, left4, right4, p.q + (row0 * nk + (u64)kh) * D, nk * D, d0, n, before, D, D - 1);
  }
  const float head_scale = D == 128 ? 0.0883883476f : D == 64 ? 0.125f : 0.176776695f;
  UNROLL for (int i = 0; i < 4; i++) {
    const int r = gpu_min_i(4 * ty + i, n - 1);
    const float scale = gpu_exp(p.cumulative[(row0 + (u64)r) * nv + (u64)h]) * head_scale;
    UNROLL for (int c = 0; c < kCols; c++) y[i][c] *= scale;
  }
  NO_UNROLL for (int j0 = 0; j0 < n; j0 += kGdnStep) {
    gdn_multiply<D>(y, left4, right4, p.attention + (row0 * nv + (u64)h) * 64, nv * 64, j0, n, p.u + (row0 * nv + (u64)h) * D, nv * D, n - 1);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    const int r = 4 * ty + i;
    if (r >= n) continue;
    UNROLL for (int c = 0; c < kCols; c++) p.core_out[((row0 + (u64)r) * nv + (u64)h) * D + (u64)(tx + 16 * c)] = y[i][c];
  }
}
