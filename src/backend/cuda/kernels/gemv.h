// y[m][n] = x[m][k] * W[n][k]^T for few rows (decode): the body of gemv_<type>_<rows>.cu. Reads each weight once per 4 rows of x.
//
// Mapping: 256 threads = 256 / lanes teams; a team's lanes split k (lane l takes groups l, l + lanes, ...) and share R rows of
// W, so each x value loaded serves R rows. Splitting k is what helps small matrices, which are bound by latency and not by
// bandwidth (1.1 to 1.5 times, GPU-FACTS section 3). From sm_80 on a team is one warp where there are enough rows to fill the card,
// and then needs no barrier. The first weights are loaded before the inputs are waited for (two steps of them where registers
// allow). One row of x sits in shared memory (4k bytes, swizzled: 16-byte reads of any group stride have no bank conflict); more
// rows read x through L1. The grid is no larger than what runs at once: a block takes several groups of teams, so that the norm is
// paid once, with the next weights always in flight. Sums: per lane over its groups in order, then over lanes in a fixed tree, so a
// row does not depend on m or R.
// Fused, because 133 small kernels of a decode step cost as much as a third of its GEMVs: RMS norm of the input; bias, residual
// add, SwiGLU of two interleaved weights, and the GDN convolution on the sums. Tried and lost on an H200: each product prefetching
// the next one's weights into the L2 (1,329 against 1,324 tok/s dense, 388 against 402 with experts).
// R = 2 on sm20: 4 rows need more than 63 registers there.
#pragma once

#include "backend/cuda/kernels/gemv_args.h"
#include "backend/cuda/kernels/norm_math.h"
#include "backend/cuda/kernels/weight_formats.h"

constexpr int kGemvRows = GPU_TIER >= 80 ? 4 : 2;

struct SharedX {
  const F4* x;
  DEVICE_M static int swizzle(int i) { return i ^ (i >> 3 & 7); }
  DEVICE_M F4 operator()(int i) const { return x[swizzle(i)]; }
};
struct GlobalX {
  const F4* x;
  DEVICE_M F4 operator()(int i) const {
    F4 v;
    v.x = x[i].x;
    v.y = x[i].y;
    v.z = x[i].z;
    v.w = x[i].w;
    return v;
  }
};

#if GPU_TIER >= 80
/// Sums of four values over a warp: lane l gets that of value l & 3. Six shuffles, where four sums of their own take twenty.
DEVICE float warp_sums(float v0, float v1, float v2, float v3, int lane) {
  const bool odd = lane & 1, upper = lane & 2;
  float a = odd ? v1 : v0, b = odd ? v3 : v2;
  a += gpu_shuffle_xor(odd ? v0 : v1, 1);
  b += gpu_shuffle_xor(odd ? v2 : v3, 1);
  float v = upper ? b : a;
  v += gpu_shuffle_xor(upper ? a : b, 2);
  UNROLL for (int mask = 4; mask < 32; mask *= 2) v += gpu_shuffle_xor(v, mask);
  return v;
}
#else
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
#endif

/// Which rows a team takes: teams are numbered through the segments, R rows each (of both weights in turn when paired).
struct GemvPlace {
  int segment, row0;
};
DEVICE GemvPlace gemv_place(const GemvArgs& a, int team) {
  GemvPlace place{0, 0};
  if (!a.paired) {
    for (; place.segment + 1 < a.segment_count; place.segment++) {
      const int here = (a.segments[place.segment].rows + kGemvRows - 1) / kGemvRows;
      if (team < here) break;
      team -= here;
    }
  }
  place.row0 = a.paired ? team * kGemvRows / 2 : team * kGemvRows;
  return place;
}

/// `expert`: 0 without experts, -1 for the shared one.
template <class F>
DEVICE void gemv_load(typename F::Raw (&w)[kGemvRows], const GemvArgs& a, int team, int expert, int group) {
  const GemvPlace place = gemv_place(a, team);
  const GemvSegment& s0 = a.segments[place.segment];
  const GemvSegment& s1 = a.segments[a.paired ? 1 : place.segment];
  WeightView v0{s0.data, s0.elements}, v1{s1.data, s1.elements};
  int k = a.k;
  if (a.joined) {
    k = a.joined;
    const int each = k / F::kGroup, place_in_row = group / each;
    group -= place_in_row * each;
    expert = place_in_row < a.experts_chosen ? a.expert_ids[place_in_row] : -1;
  }
  if (expert < 0) {
    v0 = WeightView{a.shared_data[0], a.shared_elements};
    v1 = WeightView{a.shared_data[1], a.shared_elements};
    expert = 0;
  }
  const u64 start = (u64)expert * (u64)s0.rows * (u64)k;
  UNROLL for (int r = 0; r < kGemvRows; r++) {
    const int row = gpu_min_i(a.paired ? place.row0 + r / 2 : place.row0 + r, s0.rows - 1);
    w[r] = F::load(a.paired && (r & 1) ? v1 : v0, start + (u64)row * (u64)k, group);
  }
}

/// What happens to the sum v of row r of a team and row m of x: see GemvArgs. `before` is the sum of row r - 1.
DEVICE void gemv_finish(const GemvArgs& a, float v, float before, int r, int team, int m) {
  const GemvPlace place = gemv_place(a, team);
  const int which = a.paired ? r & 1 : place.segment;
  const GemvSegment& s = a.segments[which];
  const int row = a.paired ? place.row0 + r / 2 : place.row0 + r;
  if (row >= s.rows || m >= a.m) return;
  if (s.bias) v += s.bias[row];
  const u64 to = (u64)m * (u64)s.rows + (u64)row;
  if (s.out) s.out[to] = v;
  if (a.residual && which == 0) a.residual[to] += v;
  if (a.paired && which == 1) {
    float gate = before;
    if (a.segments[0].bias) gate += a.segments[0].bias[row];
    float product = gpu_silu(gate) * v;
    if (a.expert_weights) product *= m < a.experts_chosen ? a.expert_weights[m] : gpu_sigmoid(a.shared_logit[0]);
    a.swiglu_out[to] = product;
  }
  if (a.conv_weight && which == 0) {
    const u64 step = (u64)s.rows;
    float* state = a.sequences[m].conv + (u64)a.layer * 4 * step + (u64)row;
    const float x0 = state[step], x1 = state[2 * step], x2 = state[3 * step];
    const F4 c = ((const F4*)a.conv_weight)[row];
    float sum = c.x * x0;
    sum = gpu_fma(c.y, x1, sum);
    sum = gpu_fma(c.z, x2, sum);
    sum = gpu_fma(c.w, v, sum);
    a.conv_out[to] = gpu_silu(sum);
    state[0] = x0;
    state[step] = x1;
    state[2 * step] = x2;
    state[3 * step] = v;
  }
}

template <class F, int M>
DEVICE void gemv(const GemvArgs& a) {
  constexpr int R = kGemvRows, Count = M * R;
  DYN_SHARED(F4, xs);
#if GPU_TIER >= 80
  SHARED float partial[2][8 * Count];
#else
  SHARED float partial[Count * 264 + 8 * Count * 8];
  SHARED float sums[8 * Count];
#endif
  SHARED F4 norm_scratch[72];
  const int t = tid_x(), lanes = a.lanes, teams = 256 / lanes, team = t / lanes, lane = t & (lanes - 1);
  const int groups = a.k / F::kGroup, pair = bid_y();
  int expert = 0, m0 = pair * M;
  if (a.expert_ids) {
    gpu_wait_inputs();  // the ids come from the router: nothing can be loaded before
    if (!a.joined) {
      expert = a.experts_chosen == 0 || pair < a.experts_chosen ? a.expert_ids[pair] : -1;
      m0 = pair;
    }
  }
  // Step s of a block's rows takes group lane + s * lanes; its weights lie in w[s % kAhead]. Lanes past the end load what they will not use.
  constexpr int kAhead = GPU_TIER >= 80 && M == 1 && F::kGroup <= 16 ? 2 : 1;  // larger groups would take more than 128 registers
  const int steps = (groups + lanes - 1) / lanes;
  typename F::Raw w[kAhead][R];
  UNROLL for (int u = 0; u < kAhead; u++) {
    gemv_load<F>(w[u], a, bid_x() * teams + team, expert, gpu_min_i(lane + u * lanes, groups - 1));
  }
  gpu_let_next_start();
  gpu_wait_inputs();
  if (M == 1) {
    const int input = a.expert_ids && !a.joined ? pair / a.rows_per_input : pair;
    const F4* x = (const F4*)(a.x + (u64)input * (u64)a.k);
    if (a.norm_weight) {
      const float scale = row_rms_scale(x, a.k, a.eps, (float*)norm_scratch);
      const bool write = a.normed && bid_x() == 0;
      for (int i = t; i < a.k / 4; i += 256) {
        const F4 v = rms_apply(x[i], ((const F4*)a.norm_weight)[i], scale);
        xs[SharedX::swizzle(i)] = v;
        if (write) ((F4*)a.normed)[i] = v;
        if (write && a.normed_copy) ((F4*)a.normed_copy)[i] = v;
      }
    } else {
      for (int i = t; i < a.k / 4; i += 256) xs[SharedX::swizzle(i)] = x[i];
    }
    gpu_sync();
  }
#if GPU_TIER >= 80
  int turn = 0;
#endif
  for (int block = bid_x(); block < a.blocks; block += nbid_x()) {
    float acc[Count];
    UNROLL for (int i = 0; i < Count; i++) acc[i] = 0;
    for (int s0 = 0; s0 < steps; s0 += kAhead) {
      UNROLL for (int u = 0; u < kAhead; u++) {
        const int s = s0 + u, g = lane + s * lanes;
        if (s >= steps) continue;
        typename F::Raw now[R];
        UNROLL for (int r = 0; r < R; r++) now[r] = w[u][r];
        // The weights that w[u] holds next are in flight while these are used: of the same rows, or of the block's next rows.
        const bool more = s + kAhead < steps;
        const int next = more ? block : block + nbid_x();
        if (next < a.blocks) {
          gemv_load<F>(w[u], a, next * teams + team, expert, gpu_min_i(lane + (more ? s + kAhead : u) * lanes, groups - 1));
        }
        if (g >= groups) continue;
        UNROLL for (int m = 0; m < M; m++) {
          if (M == 1) {
            const SharedX x{xs};
            UNROLL for (int r = 0; r < R; r++) acc[r] += F::dot(now[r], x, g);
          } else {
            const GlobalX x{(const F4*)(a.x + (u64)gpu_min_i(m0 + m, a.m - 1) * (u64)a.k)};
            UNROLL for (int r = 0; r < R; r++) acc[m * R + r] += F::dot(now[r], x, g);
          }
        }
      }
    }
#if GPU_TIER >= 80
    // Lane l < 4 of a team ends with row l of each m. A team of one warp needs no barrier.
    float sum[M];
    UNROLL for (int m = 0; m < M; m++) sum[m] = warp_sums(acc[m * R], acc[m * R + 1], acc[m * R + 2], acc[m * R + 3], t & 31);
    if (lanes > 32) {
      float* mine = partial[turn];
      turn ^= 1;  // the next sums go elsewhere: these may still be read
      if ((t & 31) < 4) {
        UNROLL for (int m = 0; m < M; m++) mine[(t >> 5) * Count + m * R + (t & 3)] = sum[m];
      }
      gpu_sync();
      if (lane < 4) {
        UNROLL for (int m = 0; m < M; m++) {
          const float* of_team = mine + team * (lanes / 32) * Count + m * R + lane;
          sum[m] = of_team[0];
          for (int warp = 1; warp < lanes / 32; warp++) sum[m] += of_team[warp * Count];
        }
      }
    }
    UNROLL for (int m = 0; m < M; m++) {
      const float before = gpu_shuffle_xor(sum[m], 1);
      if (lane < 4) gemv_finish(a, sum[m], before, lane, block * teams + team, m0 + m);
    }
#else
    team_sums(acc, lanes, partial, sums);
    for (int j = t; j < teams * Count; j += 256) {
      const int i = j % Count;
      gemv_finish(a, sums[j], sums[j - (i % R != 0)], i % R, block * teams + j / Count, m0 + i / R);
    }
#endif
  }
}
