// y[m][n] = x[m][k] * W[n][k]^T for few rows (decode) on cards before sm80: the body of gemv_<type>_<rows>.cu. Reads each weight once
// per 4 rows of x.
//
// Mapping: 256 threads = 256 / lanes teams; a team's lanes split k (lane l takes groups l, l + lanes, ...) and share R rows of
// W, so each x value loaded serves R rows. Splitting k is what helps small matrices, which are bound by latency and not by
// bandwidth (1.1 to 1.5 times, GPU-FACTS section 3). The first weights are loaded before the inputs are waited for. One row of x sits
// in shared memory (4k bytes, swizzled: 16-byte reads of any group stride have no bank conflict); more rows read x through L1. The
// grid is no larger than what runs at once: a block takes several groups of teams, so that the norm is paid once, with the next
// weights always in flight. Sums: per lane over its groups in order, then over lanes in a fixed tree, so a row does not depend on m
// or R.
// Fused, because 133 small kernels of a decode step cost as much as a third of its GEMVs: RMS norm of the input; bias, residual
// add, SwiGLU of two interleaved weights, and the GDN convolution on the sums.
#pragma once

#include "backend/cuda/kernels/float_row.h"
#include "backend/cuda/kernels/gemv_rows.h"

/// Sums acc over the lanes of each team. After it, sums[(team * count + i)] holds acc[i] of that team (visible to all).
template <int Count>
DEVICE void team_sums(const float (&acc)[Count], int lanes, float* partial, float* sums) {
  const int t = tid_x(), teams = 256 / lanes;
  // Eight threads an output, then one: two barriers for any number of lanes.
  UNROLL for (int i = 0; i < Count; i++) partial[i * 264 + t + (t >> 5)] = acc[i];
  gpu_sync();
  float* second = partial + Count * 264;
  for (int j = t; j < teams * Count * 8; j += 256) {
    const int output = j >> 3, part = j & 7, team = output / Count, i = output - team * Count;
    const int first = team * lanes + part * (lanes / 8);
    float v = 0;
    for (int l = first; l < first + lanes / 8; l++) v += partial[i * 264 + l + (l >> 5)];
    second[j] = v;
  }
  gpu_sync();
  for (int j = t; j < teams * Count; j += 256) {
    const float* p = second + j * 8;
    sums[j] = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
  }
  gpu_sync();
}

/// Shared memory of a gemv besides the row of x.
template <int M>
struct GemvShared {
  float partial[M * kGemvRows * 264 + 8 * M * kGemvRows * 8];
  float sums[8 * M * kGemvRows];
  F4 norm_scratch[72];
};

/// `xs`: the k floats of a row of x in shared memory, when M is 1.
template <class F, int M>
DEVICE void gemv(const GemvArgs& a, F4* xs, GemvShared<M>& shared) {
  constexpr int R = kGemvRows, Count = M * R;
  const int t = tid_x(), lanes = a.lanes, teams = 256 >> a.lanes_shift, team = t >> a.lanes_shift, lane = t & (lanes - 1);
  const int groups = a.groups, pair = bid_y();
  int expert = 0, m0 = pair * M;
  if (a.expert_ids) {
    gpu_wait_inputs();  // the ids come from the router: nothing can be loaded before
    if (!a.joined) {
      expert = a.experts_chosen == 0 || pair < a.experts_chosen ? a.expert_ids[pair] : -1;
      m0 = pair;
    }
  }
  // Step s of a block's rows takes group lane + s * lanes. Lanes past the end load what they will not use.
  const int steps = a.steps;
  typename F::Raw w[R];
  gemv_load<F>(w, a, gemv_place(a, bid_x() * teams + team), expert, gpu_min_i(lane, groups - 1));
  gpu_let_next_start();
  gpu_wait_inputs();
  if (M == 1) {
    const int input = a.expert_ids && !a.joined ? pair / a.rows_per_input : pair;
    const F4* x = (const F4*)(a.x + (u64)input * (u64)a.k);
    if (a.norm_weight) {
      const float scale = row_rms_scale(x, a.k, a.inverse_k, a.eps, (float*)shared.norm_scratch);
      const bool write = a.normed && bid_x() == 0;
      for (int i = t; i < a.k / 4; i += 256) {
        const F4 v = rms_apply(x[i], ((const F4*)a.norm_weight)[i], scale);
        xs[FloatRow::swizzle(i)] = v;
        if (write) ((F4*)a.normed)[i] = v;
        if (write && a.normed_copy) ((F4*)a.normed_copy)[i] = v;
      }
    } else {
      for (int i = t; i < a.k / 4; i += 256) xs[FloatRow::swizzle(i)] = x[i];
    }
    gpu_sync();
  }
  for (int block = bid_x(); block < a.blocks; block += nbid_x()) {
    float acc[Count];
    UNROLL for (int i = 0; i < Count; i++) acc[i] = 0;
    for (int s = 0; s < steps; s++) {
      const int g = lane + s * lanes;
      typename F::Raw now[R];
      UNROLL for (int r = 0; r < R; r++) now[r] = w[r];
      // The weights that come next are in flight while these are used: of the same rows, or of the block's next rows.
      const bool more = s + 1 < steps;
      const int next = more ? block : block + nbid_x();
      if (next < a.blocks) gemv_load<F>(w, a, gemv_place(a, next * teams + team), expert, gpu_min_i(lane + (more ? s + 1 : 0) * lanes, groups - 1));
      if (g >= groups) continue;
      UNROLL for (int m = 0; m < M; m++) {
        if (M == 1) {
          const FloatRow x{xs};
          UNROLL for (int r = 0; r < R; r++) acc[r] += F::dot(now[r], x, g);
        } else {
          const GlobalX x{(const F4*)(a.x + (u64)gpu_min_i(m0 + m, a.m - 1) * (u64)a.k)};
          UNROLL for (int r = 0; r < R; r++) acc[m * R + r] += F::dot(now[r], x, g);
        }
      }
    }
    team_sums(acc, lanes, shared.partial, shared.sums);
    for (int j = t; j < teams * Count; j += 256) {
      const int i = j % Count;
      const GemvPlace rows = gemv_place(a, block * teams + j / Count);
      gemv_finish(a, rows, gemv_before(a, rows, i % R, m0 + i / R), shared.sums[j], shared.sums[j - (i % R != 0)], i % R, m0 + i / R);
    }
  }
}
