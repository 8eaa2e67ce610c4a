// Grouped product of sorted pairs with their experts' weights, the body of moe_gemm_<type>.cu:
//   C[pair][n] = A[pair / rows_per_input][k] * W[expert(pair)][n][k]^T   for the pairs of each expert in turn
// 64 pairs x 64 rows of W a block, 256 threads of 4x4, k in steps of one weight group's worth (32): weights are unpacked into
// shared memory once per 64 tokens. grid (ceil(n / 64), most tiles): tile j of moe_place's list, tiles past the end and tiles of
// other experts than [expert_begin, expert_end) leave; `data` starts with the rows of first_expert. 17.5 KB shared. Each result
// sums over k in order, whatever shares its tile.
#pragma once

#include "backend/cuda/kernels/weight_formats.h"

constexpr int kMoePitch = 68;

template <class F>
DEVICE void moe_gemm(float* C, const float* A, const u8* data, u64 elements, const int* offsets, const int* order,
                     const int* tiles, int experts, int n, int k, int rows_per_input, int expert_begin, int expert_end,
                     int first_expert) {
  SHARED F4 a4[32 * kMoePitch / 4], b4[32 * kMoePitch / 4];
  float *as = (float*)a4, *bs = (float*)b4;
  gpu_wait_inputs();
  const int t = tid_x(), tx = t & 15, ty = t >> 4, n0 = bid_x() * 64;
  if (bid_y() >= offsets[experts + 1]) return;  // the whole block
  const int expert = tiles[2 * bid_y()], first = tiles[2 * bid_y() + 1];
  if (expert < expert_begin || expert >= expert_end) return;
  const int count = gpu_min_i(64, offsets[expert + 1] - first);
  float acc[4][4];
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0;
  }
  const int row = t >> 2, part = t & 3;  // 64 rows, four threads each
  const int pair = order[first + gpu_min_i(row, count - 1)];
  const float* a_row = A + (u64)(pair / rows_per_input) * (u64)k;
  const u64 w_row = ((u64)(expert - first_expert) * (u64)n + (u64)gpu_min_i(n0 + row, n - 1)) * (u64)k;
  const int span = F::kGroup > 32 ? F::kGroup : 32;
  const bool scattered = F::kScattered;
  // Scattered formats (K-quants) take 256 columns in eight steps: step s uses the groups whose quads it needs.
  for (int k0 = 0; k0 < k; k0 += span) {
    gpu_sync();
    UNROLL for (int i = 0; i < 2; i++) {
      const int c = part * 8 + i * 4;
      F4 v = F4{0, 0, 0, 0};
      const int at = scattered ? F::position(k0 / 32, c / 4) : k0 + c;
      if (at + 3 < k) v = load_f4(a_row + at);
      as[c * kMoePitch + row] = v.x;
      as[(c + 1) * kMoePitch + row] = v.y;
      as[(c + 2) * kMoePitch + row] = v.z;
      as[(c + 3) * kMoePitch + row] = v.w;
    }
    constexpr int kGroups = 32 / F::kGroup;  // groups in 32 columns
    // Four threads a row: with one group of 32, each unpacks two of its eight quads.
    if (kGroups == 1) {
      const typename F::Raw raw = F::load(WeightView{data, elements}, w_row, k0 / 32);
      UNROLL for (int q = 0; q < F::kGroup / 4; q++) {
        if (q / 2 != part) continue;
        const F4 v = F::values(raw, q);
        const int c = q * 4;
        bs[c * kMoePitch + row] = v.x;
        bs[(c + 1) * kMoePitch + row] = v.y;
        bs[(c + 2) * kMoePitch + row] = v.z;
        bs[(c + 3) * kMoePitch + row] = v.w;
      }
    } else {
      for (int g = part; g < kGroups; g += 4) {
        const int group = k0 / F::kGroup + g;
        const bool inside = group * F::kGroup < k;
        const typename F::Raw raw = F::load(WeightView{data, elements}, w_row, inside ? group : 0);
        UNROLL for (int q = 0; q < F::kGroup / 4; q++) {
          const F4 v = F::values(raw, q);
          const int c = g * F::kGroup + q * 4;
          bs[c * kMoePitch + row] = inside ? v.x : 0.0f;
          bs[(c + 1) * kMoePitch + row] = inside ? v.y : 0.0f;
          bs[(c + 2) * kMoePitch + row] = inside ? v.z : 0.0f;
          bs[(c + 3) * kMoePitch + row] = inside ? v.w : 0.0f;
        }
      }
    }
    gpu_sync();
    UNROLL4 for (int kk = 0; kk < 32; kk++) {
      const F4 va = a4[kk * (kMoePitch / 4) + ty], vb = b4[kk * (kMoePitch / 4) + tx];
      const float x[4] = {va.x, va.y, va.z, va.w}, y[4] = {vb.x, vb.y, vb.z, vb.w};
      UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int j = 0; j < 4; j++) acc[i][j] = gpu_fma(x[i], y[j], acc[i][j]);
      }
    }
  }
  UNROLL for (int i = 0; i < 4; i++) {
    const int r = ty * 4 + i;
    if (r >= count) continue;
    const u64 to = (u64)order[first + r] * (u64)n;
    UNROLL for (int j = 0; j < 4; j++) {
      const int c = n0 + tx * 4 + j;
      if (c < n) C[to + (u64)c] = acc[i][j];
    }
  }
}
#define MOE_GEMM(type, Format)                                                                                               \
  KERNEL(moe_gemm_##type, 256, float* C, const float* A, const u8* data, u64 elements, const int* offsets, const int* order, \
         const int* tiles, int experts, int n, int k, int rows_per_input, int expert_begin, int expert_end, int first_expert) { \
    moe_gemm<Format>(C, A, data, elements, offsets, order, tiles, experts, n, k, rows_per_input, expert_begin, expert_end, \
                     first_expert);                                                                                          \
  }
