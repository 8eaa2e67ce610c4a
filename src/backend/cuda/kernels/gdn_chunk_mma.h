// Second phase of the chunked gated delta rule on tensor cores (gdn_chunk_scan.h has the formulas and the FP32 form): the products
// with the state take TF32 operands (11 bits of mantissa) and sum in FP32; the state itself stays FP32. Used where --gemm is bf16.
// Grid (D / 16 slices of columns, nv, sequences), 256 threads. The FP32 form is bound by what shared memory returns to registers (9
// values for 8 multiplications, 13 us a chunk on an H200); here w, q, attention and k go from global memory straight into the fragments
// of mma.m16n8k8, and shared memory holds the state's slice and v' only (24 KB). Warp w of 8:
//   w S, q S and y: rows 16 (w % 4) .. of the chunk, columns 8 (w / 4) .. of the slice      k^T v': rows 16 w .. of the state, all columns
#pragma once

#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gdn_math.h"

#if GPU_TIER >= 80

constexpr int kPitch = 24;  // of rows of 16 columns: a fragment's 4 rows by 8 columns meet no bank twice
constexpr int kStage = 1;   // steps of 8 along D loaded ahead: 127 registers, so two blocks share a multiprocessor (4 steps: 230)

/// A fragment of a row-major matrix: rows r0 and r1 (given by address), columns t and t + 4 of a step of 8.
DEVICE void load_fragment(u32 (&a)[4], const float* row0, const float* row1) {
  a[0] = f32_to_tf32(row0[0]);
  a[1] = f32_to_tf32(row1[0]);
  a[2] = f32_to_tf32(row0[4]);
  a[3] = f32_to_tf32(row1[4]);
}

template <int D>
DEVICE void gdn_chunk_mma(const GdnChunkArgs& p) {
  static_assert(D == 128, "eight warps share the rows of the state");
  SHARED u32 S[D * kPitch], V[64 * kPitch], decayed[64 * kPitch];
  SHARED float G[2][64];
  gpu_wait_inputs();
  const StepSequence s = p.sequences[bid_z()];
  if (s.num_rows <= p.recurrent_rows) return;  // the whole block
  const int tid = tid_x(), warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
  const int h = bid_y(), c0 = bid_x() * 16, kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads;
  const float head_scale = 0.0883883476f;
  const int m0 = (warp & 3) * 16, n0 = (warp >> 2) * 8, d0 = warp * 16;
  const u64 state_at = ((u64)p.layer * nv + (u64)h) * D * D + (u64)c0;

  // This warp's rows of the state, as accumulators: [two column tiles][4].
  float state[2][4];
  float* rows = s.recurrent + state_at;
  UNROLL for (int n = 0; n < 2; n++) {
    UNROLL for (int c = 0; c < 4; c++) state[n][c] = rows[(u64)(d0 + g + (c >> 1) * 8) * D + (u64)(n * 8 + 2 * t + (c & 1))];
  }
  auto publish_state = [&]() {
    UNROLL for (int n = 0; n < 2; n++) {
      UNROLL for (int c = 0; c < 4; c++) S[(d0 + g + (c >> 1) * 8) * kPitch + n * 8 + 2 * t + (c & 1)] = f32_to_tf32(state[n][c]);
    }
  };
  publish_state();
  const int last_token = s.past_tokens + s.num_rows;
  auto load_gates = [&](int begin, int turn) {
    if (tid < 64 && begin < last_token) {
      const int end = gpu_min_i(last_token, begin / 64 * 64 + 64), n = end - begin;
      const u64 row = (u64)(s.first_row + begin - s.past_tokens + gpu_min_i(tid, n - 1));
      G[turn][tid] = p.cumulative[row * nv + (u64)h];  // rows past the end repeat the last
    }
  };
  load_gates(s.past_tokens, 0);
  gpu_sync();

  int capture = 0, turn = 0;
  for (int begin = s.past_tokens; begin < last_token; turn ^= 1) {
    const int end = gpu_min_i(last_token, begin / 64 * 64 + 64), n = end - begin;
    const u64 row0 = (u64)(s.first_row + begin - s.past_tokens);
    const int ra = gpu_min_i(m0 + g, n - 1), rb = gpu_min_i(m0 + g + 8, n - 1);  // rows past the end repeat the last; nothing of them is kept
    const u64 at_a = (row0 + (u64)ra) * nv + (u64)h, at_b = (row0 + (u64)rb) * nv + (u64)h;
    const float *wa = p.w + at_a * D + t, *wb = p.w + at_b * D + t;
    const float *qa = p.q + ((row0 + (u64)ra) * nk + (u64)kh) * D + t, *qb = p.q + ((row0 + (u64)rb) * nk + (u64)kh) * D + t;

    // w S and q S
    float wS[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 0};
    u32 w_next[kStage][4], q_next[kStage][4];
    UNROLL for (int i = 0; i < kStage; i++) {
      load_fragment(w_next[i], wa + i * 8, wb + i * 8);
      load_fragment(q_next[i], qa + i * 8, qb + i * 8);
    }
    UNROLL for (int stage = 0; stage < D / 8 / kStage; stage++) {
      u32 w_now[kStage][4], q_now[kStage][4];
      UNROLL for (int i = 0; i < kStage; i++) {
        UNROLL for (int j = 0; j < 4; j++) {
          w_now[i][j] = w_next[i][j];
          q_now[i][j] = q_next[i][j];
        }
      }
      if (stage + 1 < D / 8 / kStage) {
        UNROLL for (int i = 0; i < kStage; i++) {
          const int d = ((stage + 1) * kStage + i) * 8;
          load_fragment(w_next[i], wa + d, wb + d);
          load_fragment(q_next[i], qa + d, qb + d);
        }
      }
      UNROLL for (int i = 0; i < kStage; i++) {
        const u32* cell = S + ((stage * kStage + i) * 8 + t) * kPitch + n0 + g;
        const u32 b[2] = {cell[0], cell[4 * kPitch]};
        gpu_mma_tf32(wS, w_now[i], b);
        gpu_mma_tf32(y, q_now[i], b);
      }
    }
    // v' = u - w S, and the part of y that comes from the state
    const float ga = gpu_exp(G[turn][ra]) * head_scale, gb = gpu_exp(G[turn][rb]) * head_scale;
    float v[4];
    UNROLL for (int c = 0; c < 4; c++) {
      const int r = m0 + g + (c >> 1) * 8, column = n0 + 2 * t + (c & 1);
      const float u = p.u[(c < 2 ? at_a : at_b) * D + (u64)(c0 + column)];
      v[c] = r < n ? u - wS[c] : 0.0f;
      V[r * kPitch + column] = f32_to_tf32(v[c]);
      y[c] *= c < 2 ? ga : gb;
    }
    // k^T (decayed v') adds to the state; first for the captures of this chunk
    for (;;) {
      const bool inside = capture < s.num_captures && s.captures[capture].rows <= end - s.past_tokens;
      const int m = inside ? s.captures[capture].rows - (begin - s.past_tokens) : n;
      const float last = G[turn][m - 1];
      UNROLL for (int c = 0; c < 4; c++) {
        const int r = m0 + g + (c >> 1) * 8;
        decayed[r * kPitch + n0 + 2 * t + (c & 1)] = f32_to_tf32(r < m ? v[c] * gpu_exp(last - G[turn][r]) : 0.0f);
      }
      gpu_sync();
      float sum[2][4];
      const float decay = gpu_exp(last);
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int c = 0; c < 4; c++) sum[i][c] = decay * state[i][c];
      }
      UNROLL for (int j = 0; j < 64; j += 8) {
        const float* ka = p.k + ((row0 + (u64)gpu_min_i(j + t, n - 1)) * nk + (u64)kh) * D + (u64)(d0 + g);
        const float* kb = p.k + ((row0 + (u64)gpu_min_i(j + t + 4, n - 1)) * nk + (u64)kh) * D + (u64)(d0 + g);
        const u32 a[4] = {f32_to_tf32(ka[0]), f32_to_tf32(ka[8]), f32_to_tf32(kb[0]), f32_to_tf32(kb[8])};
        UNROLL for (int i = 0; i < 2; i++) {
          const u32* cell = decayed + (j + t) * kPitch + i * 8 + g;
          const u32 b[2] = {cell[0], cell[4 * kPitch]};
          gpu_mma_tf32(sum[i], a, b);
        }
      }
      if (!inside) {
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int c = 0; c < 4; c++) state[i][c] = sum[i][c];
        }
        break;
      }
      float* captured = s.captures[capture].recurrent + state_at;
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int c = 0; c < 4; c++) captured[(u64)(d0 + g + (c >> 1) * 8) * D + (u64)(i * 8 + 2 * t + (c & 1))] = sum[i][c];
      }
      ++capture;
      gpu_sync();  // everyone has read `decayed`
    }
    publish_state();  // the old one was last read before the barrier above
    load_gates(end, turn ^ 1);
    // y += attention v'
    const float *aa = p.attention + at_a * 64 + t, *ab = p.attention + at_b * 64 + t;
    UNROLL for (int j = 0; j < 64; j += 8) {
      u32 a[4];
      load_fragment(a, aa + j, ab + j);
      const u32* cell = V + (j + t) * kPitch + n0 + g;
      const u32 b[2] = {cell[0], cell[4 * kPitch]};
      gpu_mma_tf32(y, a, b);
    }
    UNROLL for (int c = 0; c < 4; c++) {
      if (m0 + g + (c >> 1) * 8 < n) p.core_out[(c < 2 ? at_a : at_b) * D + (u64)(c0 + n0 + 2 * t + (c & 1))] = y[c];
    }
    gpu_sync();
    begin = end;
  }
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int c = 0; c < 4; c++) rows[(u64)(d0 + g + (c >> 1) * 8) * D + (u64)(i * 8 + 2 * t + (c & 1))] = state[i][c];
  }
}

#endif
