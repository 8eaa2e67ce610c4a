// y[m][n] = x[m][k] * W[n][k]^T for few rows (decode) on sm80 and newer: the body of gemv_<type>_<rows>.cu there. Reads each weight once
// per 4 rows of x.
//
// Mapping: 256 threads = 256 / lanes teams; a team's lanes split k (lane l takes groups l, l + lanes, ...) and share 4 rows of W. A
// team is one warp where there are enough rows to fill the card, and then needs no barrier; more lanes help small matrices, which
// are bound by latency. What can be loaded before the inputs are there is: weights, the norm's weights. The row of x lies in shared
// memory, as int8 for quantised weights (warp_formats.h). The grid is no larger than what runs at once: a block takes several groups
// of teams, so that the norm is paid once, with the next weights always in flight. Sums: per lane over its groups in order, then
// over lanes in a fixed tree, so a row does not depend on m.
// Fused, because 133 small kernels of a decode step cost as much as a third of its GEMVs: RMS norm of the input; bias, residual
// add, SwiGLU of two interleaved weights, and the GDN convolution on the sums. Tried and lost on an H200: each product prefetching
// the next one's weights into the L2 (1,329 against 1,324 tok/s dense, 388 against 402 with experts); one block a multiprocessor
// (1,354 against 1,522), and 64 registers so that two kernels fit it together (863).
#pragma once

#include "backend/cuda/kernels/gemv_rows.h"
#include "backend/cuda/kernels/warp_formats.h"
#include "backend/cuda/kernels/warp_sums.h"

/// Shared memory of a gemv besides the rows of x.
template <int M>
struct GemvShared {
  float partial[2][8 * M * kGemvRows];
  F4 norm_scratch[72];
};

/// Row m of x into shared memory, normed if the arguments say so. `held`: the norm's weight of quad `thread`.
template <class Row>
DEVICE void gemv_stage(const GemvArgs& a, const F4* x, F4 held, const Row& row, float* scratch) {
  const int t = tid_x(), quads = a.k / 4;
  float scale = 1.0f;
  if (a.norm_weight) scale = row_rms_scale(x, a.k, a.inverse_k, a.eps, scratch);
  const bool write = a.norm_weight && a.normed && bid_x() == 0;
  const auto store = [&](int i, float w0, float w1, float w2, float w3) {
    const bool inside = i < quads;
    F4 v = x[gpu_min_i(i, quads - 1)];
    if (a.norm_weight) v = rms_apply(v, F4{w0, w1, w2, w3}, scale);
    if (write && inside) {
      ((F4*)a.normed)[i] = v;
      if (a.normed_copy) ((F4*)a.normed_copy)[i] = v;
    }
    row.store(i, v, inside);
  };
  store(t, held.x, held.y, held.z, held.w);
  NO_UNROLL for (int i = 256 + t; i - t < quads; i += 256) {
    F4 weight = F4{0, 0, 0, 0};
    if (a.norm_weight) weight = ((const F4*)a.norm_weight)[gpu_min_i(i, quads - 1)];
    store(i, weight.x, weight.y, weight.z, weight.w);
  }
}

/// `memory`: Row::bytes(k) of shared memory for each of the M rows of x (floats of several rows are read through L1 instead).
template <class F, int M>
DEVICE void gemv(const GemvArgs& a, u8* memory, GemvShared<M>& shared) {
  gpu_let_next_start();
  constexpr int R = kGemvRows, Count = M * R;
  typedef typename F::Row Row;
  constexpr bool kStaged = M == 1 || Row::kInt8;
  const int t = tid_x(), shift = a.lanes_shift, lanes = 1 << shift, teams = 256 >> shift, team = t >> shift, lane = t & (lanes - 1);
  const int groups = a.groups, pair = bid_y(), blocks = a.blocks;
  int expert = 0, m0 = pair * M;
  if (a.expert_ids) {
    gpu_wait_inputs();  // the ids come from the router: nothing can be loaded before
    if (!a.joined) {
      expert = a.experts_chosen == 0 || pair < a.experts_chosen ? a.expert_ids[pair] : -1;
      m0 = pair;
    }
  }
  // Step s of a block's rows takes group lane + (s << shift); its weights lie in w[s % kAhead]. Lanes past the end load what they
  // will not use.
  constexpr int kAhead = M == 1 && sizeof(typename F::Raw) <= 20 ? 2 : 1;  // larger ones would take more than 128 registers
  const int steps = a.steps;
  typename F::Raw w[kAhead][R];
  GemvPlace rows = gemv_place(a, bid_x() * teams + team);
  UNROLL for (int u = 0; u < kAhead; u++) gemv_load<F>(w[u], a, rows, expert, gpu_min_i(lane + (u << shift), groups - 1));
  F4 held = F4{0, 0, 0, 0};
  if (M == 1 && a.norm_weight) held = ((const F4*)a.norm_weight)[gpu_min_i(t, a.k / 4 - 1)];
  if (!a.expert_ids) gpu_wait_inputs();
  GemvBefore before{0, 0, 0, 0, F4{0, 0, 0, 0}};
  if (M == 1 && lane < 4) before = gemv_before(a, rows, lane, m0);
  if constexpr (kStaged) {
    UNROLL for (int m = 0; m < M; m++) {
      const int input = M > 1 ? gpu_min_i(m0 + m, a.m - 1) : a.expert_ids && !a.joined ? pair / a.rows_per_input : pair;
      const Row row = Row::at(memory + m * Row::bytes(a.k), a.k);
      gemv_stage(a, (const F4*)(a.x + (u64)input * (u64)a.k), held, row, (float*)shared.norm_scratch);
    }
    gpu_sync();
  }
  int turn = 0;
  for (int block = bid_x(); block < blocks; block += nbid_x()) {
    const int next_block = block + nbid_x();
    GemvPlace next_rows{0, 0};
    if (next_block < blocks) next_rows = gemv_place(a, next_block * teams + team);
    float acc[Count];
    UNROLL for (int i = 0; i < Count; i++) acc[i] = 0;
    NO_UNROLL for (int s0 = 0; s0 < steps; s0 += kAhead) {
      UNROLL for (int u = 0; u < kAhead; u++) {
        const int s = s0 + u, g = lane + (s << shift);
        if (s >= steps) continue;
        typename F::Raw now[R];
        UNROLL for (int r = 0; r < R; r++) now[r] = w[u][r];
        // The weights that w[u] holds next are in flight while these are used: of the same rows, or of the block's next rows.
        const bool more = s + kAhead < steps;
        if (more || next_block < blocks) {
          const GemvPlace from{more ? rows.segment : next_rows.segment, more ? rows.row0 : next_rows.row0};
          gemv_load<F>(w[u], a, from, expert, gpu_min_i(lane + ((more ? s + kAhead : u) << shift), groups - 1));
        }
        if (g >= groups) continue;
        UNROLL for (int m = 0; m < M; m++) {
          if constexpr (kStaged) {
            const Row x = Row::at(memory + m * Row::bytes(a.k), a.k);
            UNROLL for (int r = 0; r < R; r++) acc[m * R + r] += F::dot(now[r], x, g);
          } else {
            const GlobalX x{(const F4*)(a.x + (u64)gpu_min_i(m0 + m, a.m - 1) * (u64)a.k)};
            UNROLL for (int r = 0; r < R; r++) acc[m * R + r] += F::dot(now[r], x, g);
          }
        }
      }
    }
    // Lane l < 4 of a team ends with row l of each m. A team of one warp needs no barrier.
    float sum[M];
    UNROLL for (int m = 0; m < M; m++) sum[m] = warp_sums(acc[m * R], acc[m * R + 1], acc[m * R + 2], acc[m * R + 3], t & 31);
    if (lanes > 32) {
      float* mine = shared.partial[turn];
      turn ^= 1;  // the next sums go elsewhere: these may still be read
      if ((t & 31) < 4) {
        UNROLL for (int m = 0; m < M; m++) mine[(t >> 5) * Count + m * R + (t & 3)] = sum[m];
      }
      gpu_sync();
      if (lane < 4) {
        UNROLL for (int m = 0; m < M; m++) {
          const float* of_team = mine + (team << (shift - 5)) * Count + m * R + lane;
          sum[m] = of_team[0];
          NO_UNROLL for (int warp = 1; warp < 1 << (shift - 5); warp++) sum[m] += of_team[warp * Count];
        }
      }
    }
    UNROLL for (int m = 0; m < M; m++) {
      const float gate = gpu_shuffle_xor(sum[m], 1);
      if (lane >= 4) continue;
      if (M > 1) before = gemv_before(a, rows, lane, m0 + m);
      gemv_finish(a, rows, before, sum[m], gate, lane, m0 + m);
    }
    rows = next_rows;
    if (M == 1 && next_block < blocks && lane < 4) before = gemv_before(a, rows, lane, m0);
  }
}
