// Softmax attention of a prompt in one kernel on tensor cores, heads of 256: scores never leave the registers (Dao, "FlashAttention-2",
// 2023). Written through memory as scores, exponentials and probabilities they took 20 bytes a query and key, which at 32k tokens is
// more time than everything else of a prompt.
//   out = softmax(q k^T 256^-1/2) v * sigmoid(gate), causal
// Operands are bf16, sums and the softmax FP32. A block has 16 queries a warp; keys come in tiles of 64 at multiples of 64, so a query's
// sums have the same order whatever is computed beside it. V of a tile arrives while its scores are computed, the next K while V is
// multiplied. grid (ceil(rows / (16 Warps)), heads), 32 Warps threads; (16 Warps + 128) * 528 bytes of dynamic shared memory: with four
// warps 101,376, what compute capability 8.6 has; with eight, keys are read half as often.
#pragma once

#include "backend/cuda/kernels/async_copy.h"
#include "backend/cuda/kernels/attention_flash_args.h"
#include "backend/cuda/kernels/matrix_loads.h"

#if GPU_TIER >= 80

template <int Warps>
DEVICE void attention_flash(const AttentionFlashArgs& p) {
  constexpr int kDim = 256, kPitch = kDim + 8, kKeys = 64, kRows = 16 * Warps, kThreads = 32 * Warps;
  DYN_SHARED(u16, qs);
  u16 *ks = qs + kRows * kPitch, *vs = ks + kKeys * kPitch;
  const int tid = tid_x(), lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3, head = bid_y();
  const int first = (nbid_x() - 1 - bid_x()) * kRows;  // the longest rows start first
  const int tiles = (p.past + gpu_min_i(first + kRows, p.rows) + kKeys - 1) / kKeys;
  const u64 nh = (u64)p.num_q_heads, kv_at = (u64)(head / p.group) * (u64)p.kv_rows * kDim;
  const auto load_tile = [&](u16* to, const u16* from, int tile) {
    // A loop at run time: unrolled, its addresses take the registers that the sums need.
    u16* place = to + warp * kPitch + lane * 8;
    const u16* source = from + kv_at + (u64)(tile * kKeys + warp) * kDim + (u64)(lane * 8);
    NO_UNROLL for (int r = warp; r < kKeys; r += Warps, place += Warps * kPitch, source += Warps * kDim) gpu_copy16_async(place, source);
  };
  const TileLane q_lane = a_lane(qs + warp * 16 * kPitch, kPitch, lane), k_lane = b_lane(ks, kPitch, lane), v_lane = bt_lane(vs, kPitch, lane);
  load_tile(ks, p.k, 0);
  UNROLL2 for (int i = 0; i < 16; i++) {  // queries, rows past the end repeat the last
    const int at = tid + kThreads * i, r = at >> 5, c = (at & 31) * 8;
    const F4* q = (const F4*)(p.q + ((u64)gpu_min_i(first + r, p.rows - 1) * nh + (u64)head) * kDim + (u64)c);
    U4* to = (U4*)(qs + r * kPitch + c);
    to->x = f32x2_to_bf16x2(q[0].x, q[0].y);
    to->y = f32x2_to_bf16x2(q[0].z, q[0].w);
    to->z = f32x2_to_bf16x2(q[1].x, q[1].y);
    to->w = f32x2_to_bf16x2(q[1].z, q[1].w);
  }
  float out[kDim / 8][4], top[2] = {-3.0e38f, -3.0e38f}, total[2] = {0, 0};
  UNROLL for (int j = 0; j < kDim / 8; j++) {
    UNROLL for (int i = 0; i < 4; i++) out[j][i] = 0;
  }
  gpu_wait_copies();
  gpu_sync();
  NO_UNROLL for (int tile = 0; tile < tiles; tile++) {
    load_tile(vs, p.v, tile);
    float s[8][4];
    UNROLL for (int j = 0; j < 8; j++) {
      UNROLL for (int i = 0; i < 4; i++) s[j][i] = 0;
    }
    UNROLL2 for (int d = 0; d < kDim; d += 16) {
      u32 a[4];
      load_a(a, q_lane, d, kPitch);
      UNROLL for (int j = 0; j < 8; j += 2) {
        u32 b[2][2];
        load_b(b[0], b[1], k_lane, j * 8 * kPitch + d, kPitch);
        gpu_mma_bf16(s[j], a, b[0]);
        gpu_mma_bf16(s[j + 1], a, b[1]);
      }
    }
    const int place = p.past + first + warp * 16 + g;  // of this thread's first query; the other is eight further
    float most[2] = {top[0], top[1]}, shrink[2];
    UNROLL for (int j = 0; j < 8; j++) {
      UNROLL for (int i = 0; i < 4; i++) {
        const int key = tile * kKeys + j * 8 + 2 * t + (i & 1);
        s[j][i] = key <= place + (i >> 1) * 8 ? s[j][i] * p.scale_log2 : -3.0e38f;
        most[i >> 1] = gpu_max(most[i >> 1], s[j][i]);
      }
    }
    UNROLL for (int i = 0; i < 2; i++) {
      most[i] = gpu_max(most[i], gpu_shuffle_xor(most[i], 1));
      most[i] = gpu_max(most[i], gpu_shuffle_xor(most[i], 2));
      shrink[i] = gpu_exp2(top[i] - most[i]);
      top[i] = most[i];
      total[i] *= shrink[i];
    }
    u32 weights[8][2];
    UNROLL for (int j = 0; j < 8; j++) {
      UNROLL for (int i = 0; i < 4; i++) {
        s[j][i] = gpu_exp2(s[j][i] - top[i >> 1]);
        total[i >> 1] += s[j][i];
      }
      weights[j][0] = f32x2_to_bf16x2(s[j][0], s[j][1]);
      weights[j][1] = f32x2_to_bf16x2(s[j][2], s[j][3]);
    }
    UNROLL for (int j = 0; j < kDim / 8; j++) {
      UNROLL for (int i = 0; i < 4; i++) out[j][i] *= shrink[i >> 1];
    }
    gpu_wait_copies();  // V
    gpu_sync();
    if (tile + 1 < tiles) load_tile(ks, p.k, tile + 1);
    UNROLL for (int kk = 0; kk < kKeys / 16; kk++) {
      const u32 a[4] = {weights[2 * kk][0], weights[2 * kk][1], weights[2 * kk + 1][0], weights[2 * kk + 1][1]};
      UNROLL for (int j = 0; j < kDim / 8; j += 2) {
        u32 b[2][2];
        load_bt(b[0], b[1], v_lane, kk * 16 * kPitch + j * 8, kPitch);
        gpu_mma_bf16(out[j], a, b[0]);
        gpu_mma_bf16(out[j + 1], a, b[1]);
      }
    }
    gpu_wait_copies();  // the next K
    gpu_sync();
  }
  UNROLL for (int i = 0; i < 2; i++) {
    total[i] += gpu_shuffle_xor(total[i], 1);
    total[i] += gpu_shuffle_xor(total[i], 2);
    total[i] = 1.0f / total[i];
  }
  UNROLL for (int i = 0; i < 2; i++) {
    const int r = first + warp * 16 + g + 8 * i;
    if (r >= p.rows) continue;
    const u64 at = ((u64)r * nh + (u64)head) * kDim;
    const float* gate = p.q_gate + ((u64)r * nh + (u64)head) * (2 * kDim) + kDim;
    UNROLL for (int j = 0; j < kDim / 8; j++) {
      const int c = j * 8 + 2 * t;
      const F2* z = (const F2*)(gate + c);
      F2 v;
      v.x = out[j][2 * i] * total[i] * gpu_sigmoid(z->x);
      v.y = out[j][2 * i + 1] * total[i] * gpu_sigmoid(z->y);
      F2* to = (F2*)(p.out + at + (u64)c);
      to->x = v.x;
      to->y = v.y;
      if (p.twin) *(u32*)(p.twin + at + (u64)c) = f32x2_to_bf16x2(v.x, v.y);
    }
  }
}

#endif
