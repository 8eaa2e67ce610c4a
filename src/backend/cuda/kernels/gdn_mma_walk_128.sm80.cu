// Second phase of the chunked gated delta rule on tensor cores: the walk over the chunks of a sequence, which is the one part that is
// serial. For each chunk, with S the state before it:
//   v' = u - w S;   S = exp(G_end) S + sum_i exp(G_end - G_i) k_i v'_i^T
// Products take TF32 operands (11 bits of mantissa) and sum in FP32; the state itself stays FP32. Outputs do not belong to the walk:
// it leaves v' and S of every chunk as bf16 for gdn_mma_output_128, which does all chunks at once.
// Grid (8 slices of 16 columns, nv, sequences), 256 threads. w and k of a chunk lie in shared memory; k arrives while w is multiplied
// and the next w while k is. Warp w of 8:
//   w S: rows 16 (w % 4) .. of the chunk, columns 8 (w / 4) .. of the slice      k^T v': rows 16 w .. of the state, all columns
// A state capture inside a chunk is the last line with the sum ended there: v' of its rows does not depend on later ones, so the
// captured state is what a prompt cut there would leave, and the walk itself is not cut.
// 99,840 bytes of dynamic shared memory: one block on compute capability 8.6, two on 9.0.
#include "backend/cuda/kernels/async_copy.h"
#include "backend/cuda/kernels/gdn_mma_chunk.h"

#if GPU_TIER >= 80

constexpr int kWPitch = 132, kKPitch = 136, kPitch = 24;  // words; fragments meet no bank twice

KERNEL(gdn_mma_walk_128, 256, const GdnMmaArgs p) {
  DYN_SHARED(u32, ws);
  u32 *ks = ws + 64 * kWPitch, *us = ks + 64 * kKPitch, *S = us + 64 * kPitch, *V = S + kDim * kPitch, *decayed = V + 64 * kPitch;
  float* gates = (float*)(decayed + 64 * kPitch);  // G of this chunk and of the next
  const StepSequence s = p.sequences[bid_z()];
  if (s.num_rows <= p.recurrent_rows) return;  // the whole block
  const int tid = tid_x(), warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
  const int h = bid_y(), c0 = bid_x() * 16, kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads;
  const int m0 = (warp & 3) * 16, n0 = (warp >> 2) * 8, d0 = warp * 16;
  const u64 state_at = ((u64)p.layer * nv + (u64)h) * kDim * kDim + (u64)c0;

  // This warp's rows of the state, as accumulators: [two column tiles][4].
  float state[2][4];
  float* rows = s.recurrent + state_at;
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 4; j++) state[i][j] = rows[(u64)(d0 + g + (j >> 1) * 8) * kDim + (u64)(i * 8 + 2 * t + (j & 1))];
  }
  auto publish_state = [&]() {
    UNROLL for (int i = 0; i < 2; i++) {
      UNROLL for (int j = 0; j < 4; j++) S[(d0 + g + (j >> 1) * 8) * kPitch + i * 8 + 2 * t + (j & 1)] = f32_to_tf32(state[i][j]);
    }
  };
  auto load_w = [&](const GdnChunk& c) {
    const u64 at = (c.slot * nv + (u64)h) * 64;
    UNROLL for (int i = 0; i < 8; i++) {
      const int r = warp + 8 * i, col = (tid & 31) * 4;
      gpu_copy16_async(ws + r * kWPitch + col, p.w + (at + (u64)r) * kDim + (u64)col);
    }
    gpu_copy16_async(us + (tid >> 2) * kPitch + t * 4, p.u + (at + (u64)(tid >> 2)) * kDim + (u64)(c0 + t * 4));
  };
  auto load_k = [&](const GdnChunk& c) {
    UNROLL for (int i = 0; i < 8; i++) {
      const int r = warp + 8 * i, col = (tid & 31) * 4;  // rows past the end repeat the last; v' is zero there
      gpu_copy16_async(ks + r * kKPitch + col, p.k + ((c.row0 + (u64)gpu_min_i(r, c.rows - 1)) * nk + (u64)kh) * kDim + (u64)col);
    }
  };
  auto load_gates = [&](const GdnChunk& c, int turn) {
    if (tid < 64) gates[turn * 64 + tid] = p.cumulative[(c.slot * nv + (u64)h) * 64 + (u64)tid];
  };

  GdnChunk c = gdn_chunk_of(s, bid_z(), 0);
  load_w(c);
  load_gates(c, 0);
  publish_state();
  gpu_wait_copies();
  gpu_sync();
  load_k(c);
  int capture = 0, turn = 0;
  for (int index = 0;; index++, turn ^= 1) {
    const float* G = gates + turn * 64;
    const u64 at = c.slot * nv + (u64)h;
    const GdnChunk next = gdn_chunk_of(s, bid_z(), index + 1);
    const int n = c.rows, end = c.begin + n - s.past_tokens;  // rows of the sequence up to here
    {  // the state before the chunk, for the outputs: a column and 8 rows a thread
      const int col = tid & 15, d = (tid >> 4) * 8;
      const u32* from = S + d * kPitch + col;
      u32 packed[4];
      UNROLL for (int i = 0; i < 4; i++) {
        packed[i] = f32x2_to_bf16x2(as_f32(from[2 * i * kPitch]), as_f32(from[(2 * i + 1) * kPitch]));
      }
      U4* to = (U4*)(p.states + (at * kDim + (u64)(c0 + col)) * kDim + (u64)d);
      to->x = packed[0];
      to->y = packed[1];
      to->z = packed[2];
      to->w = packed[3];
    }
    // w S, even and odd steps apart: a chain of half the length
    float wS[2][4];
    UNROLL for (int i = 0; i < 4; i++) wS[0][i] = wS[1][i] = 0;
    UNROLL4 for (int d = 0; d < kDim; d += 16) {
      UNROLL for (int i = 0; i < 2; i++) {
        u32 a[4];
        load_a(a, ws + (m0 + g) * kWPitch + d + 8 * i + t, kWPitch);
        const u32* cell = S + (d + 8 * i + t) * kPitch + n0 + g;
        const u32 b[2] = {cell[0], cell[4 * kPitch]};
        gpu_mma_tf32(wS[i], a, b);
      }
    }
    float v[4];
    UNROLL for (int i = 0; i < 4; i++) {
      const int cell = (m0 + g + (i >> 1) * 8) * kPitch + n0 + 2 * t + (i & 1);
      v[i] = as_f32(us[cell]) - (wS[0][i] + wS[1][i]);
      V[cell] = as_u32(v[i]);
    }
    // k^T (decayed v') adds to the state; first for the captures of this chunk
    for (bool first = true;; first = false) {
      const bool inside = capture < s.num_captures && s.captures[capture].rows <= end;
      const int m = inside ? s.captures[capture].rows - (c.begin - s.past_tokens) : n;
      const float last = G[m - 1];
      UNROLL for (int i = 0; i < 4; i++) {
        const int r = m0 + g + (i >> 1) * 8;
        decayed[r * kPitch + n0 + 2 * t + (i & 1)] = f32_to_tf32(r < m ? v[i] * gpu_exp(last - G[r]) : 0.0f);
      }
      if (first) gpu_wait_copies();  // k
      gpu_sync();
      if (first) {
        if (next.rows > 0) {
          load_w(next);
          load_gates(next, turn ^ 1);
        }
        // v' for the outputs: a column and 4 rows a thread
        const int col = tid & 15, r = (tid >> 4) * 4;
        const u32* from = V + r * kPitch + col;
        U2* to = (U2*)(p.values + (at * kDim + (u64)(c0 + col)) * 64 + (u64)r);
        to->x = f32x2_to_bf16x2(as_f32(from[0]), as_f32(from[kPitch]));
        to->y = f32x2_to_bf16x2(as_f32(from[2 * kPitch]), as_f32(from[3 * kPitch]));
      }
      float sum[2][4];
      const float decay = gpu_exp(last);
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int j = 0; j < 4; j++) sum[i][j] = decay * state[i][j];
      }
      UNROLL4 for (int j = 0; j < 64; j += 8) {
        const u32 *ka = ks + (j + t) * kKPitch + d0 + g, *kb = ka + 4 * kKPitch;
        const u32 a[4] = {f32_to_tf32(as_f32(ka[0])), f32_to_tf32(as_f32(ka[8])), f32_to_tf32(as_f32(kb[0])), f32_to_tf32(as_f32(kb[8]))};
        UNROLL for (int i = 0; i < 2; i++) {
          const u32* cell = decayed + (j + t) * kPitch + i * 8 + g;
          const u32 b[2] = {cell[0], cell[4 * kPitch]};
          gpu_mma_tf32(sum[i], a, b);
        }
      }
      float* to = inside ? s.captures[capture].recurrent + state_at : nullptr;
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int j = 0; j < 4; j++) {
          if (inside) to[(u64)(d0 + g + (j >> 1) * 8) * kDim + (u64)(i * 8 + 2 * t + (j & 1))] = sum[i][j];
          else state[i][j] = sum[i][j];
        }
      }
      if (!inside) break;
      ++capture;
      gpu_sync();  // everyone has read `decayed`
    }
    if (next.rows <= 0) break;
    publish_state();  // the old one was last read before the barrier above
    gpu_wait_copies();  // the next w
    gpu_sync();
    load_k(next);
    c = next;
  }
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 4; j++) rows[(u64)(d0 + g + (j >> 1) * 8) * kDim + (u64)(i * 8 + 2 * t + (j & 1))] = state[i][j];
  }
}

#endif
