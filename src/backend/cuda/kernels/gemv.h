// y[m][n] = x[m][k] * W[n][k]^T for few rows (decode): the body of gemv_<type>_<rows>.cu. Reads each weight once per 4 rows of x.
//
// Mapping: 256 threads = 256 / lanes teams; a team's lanes split k (lane l takes groups l, l + lanes, ...) and share R rows of
// W, so each x value loaded serves R rows. Splitting k is what helps small matrices, which are bound by latency and not by
// bandwidth (1.1 to 1.5 times, GPU-FACTS section 3). The first weights are loaded before the inputs are waited for. One row of x
// sits in shared memory (4k bytes, swizzled: 16-byte reads of any group stride have no bank conflict); more rows read x through
// L1. The grid is no larger than what runs at once: a block takes several groups of teams, so that the norm is paid once, with
// the next weights always in flight. Sums: per lane over its groups in order, then over lanes in a fixed tree, so a row does not depend on m or R.
// Fused, because 133 small kernels of a decode step cost as much as a third of its GEMVs: RMS norm of the input; bias, residual
// add, SwiGLU of two interleaved weights, and the GDN convolution on the sums. A small kernel waits on memory latency, and the
// weights do not depend on its inputs: on newer cards each product asks for the next one's weights ahead of time, into the L2.
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

/// Sums acc over the lanes of each team. After it, sums[(team * count + i)] holds acc[i] of that team (visible to all).
template <int Count>
DEVICE void team_sums(const float (&acc)[Count], int lanes, float* partial, float* sums) {
  const int t = tid_x(), teams = 256 / lanes;
#if GPU_TIER >= 80
  const int warps = lanes / 32;
  UNROLL for (int i = 0; i < Count; i++) {
    float v = acc[i];
    UNROLL for (int mask = 16; mask > 0; mask /= 2) v += gpu_shuffle_xor(v, mask);
    if ((t & 31) == 0) partial[(t >> 5) * Count + i] = v;
  }
  gpu_sync();
  if (t < teams * Count) {
    const int team = t / Count, i = t - team * Count;
    float v = partial[team * warps * Count + i];
    for (int w = 1; w < warps; w++) v += partial[(team * warps + w) * Count + i];
    sums[t] = v;
  }
#else
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
#endif
  gpu_sync();
}

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

/// What happens to one sum: see GemvArgs. `sums` holds the block's sums, j is this one's place.
template <int M>
DEVICE void gemv_finish(const GemvArgs& a, const float* sums, int j, int team, int m0) {
  constexpr int R = kGemvRows;
  const int i = j % (M * R), m = m0 + i / R, r = i % R;
  const GemvPlace place = gemv_place(a, team);
  const int which = a.paired ? r & 1 : place.segment;
  const GemvSegment& s = a.segments[which];
  const int row = a.paired ? place.row0 + r / 2 : place.row0 + r;
  if (row >= s.rows || m >= a.m) return;
  float v = sums[j];
  if (s.bias) v += s.bias[row];
  const u64 to = (u64)m * (u64)s.rows + (u64)row;
  if (s.out) s.out[to] = v;
  if (a.residual && which == 0) a.residual[to] += v;
  if (a.paired && which == 1) {
    float gate = sums[j - 1];
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
  SHARED float partial[8 * Count];
#else
  SHARED float partial[Count * 264 + 8 * Count * 8];
#endif
  SHARED float sums[8 * Count];
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
  typename F::Raw w[R];
  const int first = gpu_min_i(lane, groups - 1);  // lanes past the end load what they will not use
  gemv_load<F>(w, a, bid_x() * teams + team, expert, first);
#if GPU_TIER >= 80
  for (int i = 0; i < a.prefetch_count; i++) {
    const u64 step = (u64)(nbid_x() * nbid_y()) * 256 * 128;
    for (u64 at = ((u64)(bid_y() * nbid_x() + bid_x()) * 256 + (u64)t) * 128; at < a.prefetch[i].bytes; at += step) {
      gpu_prefetch_l2(a.prefetch[i].data + at);
    }
  }
#endif
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
  for (int block = bid_x(); block < a.blocks; block += nbid_x()) {
    float acc[Count];
    UNROLL for (int i = 0; i < Count; i++) acc[i] = 0;
    for (int g = lane; g < groups; g += lanes) {
      typename F::Raw now[R];
      UNROLL for (int r = 0; r < R; r++) now[r] = w[r];
      // The next weights are in flight while these are used: of the same rows, or the first of the block's next rows.
      const bool more = g + lanes < groups;
      const int next = gpu_min_i(block + nbid_x(), a.blocks - 1);
      gemv_load<F>(w, a, (more ? block : next) * teams + team, expert, more ? g + lanes : first);
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
    team_sums(acc, lanes, partial, sums);
    for (int j = t; j < teams * Count; j += 256) gemv_finish<M>(a, sums, j, block * teams + j / Count, m0);
  }
}
