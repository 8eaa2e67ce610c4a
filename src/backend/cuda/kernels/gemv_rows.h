// What the products of few rows (gemv_team.h, gemv_warp.h) have in common: which rows of W a team takes, and what becomes of a sum.
#pragma once

#include "backend/cuda/kernels/gemv_args.h"
#include "backend/cuda/kernels/norm_math.h"
#include "backend/cuda/kernels/weight_formats.h"

constexpr int kGemvRows = GPU_TIER >= 80 ? 4 : 2;  // of a team; 4 need more than 63 registers on sm20

/// A row of x in global memory, read through L1.
struct GlobalX {
  const F4* x;
  DEVICE_M F4 operator()(int i) const { return load_f4((const float*)(x + i)); }
};

/// Which rows a team takes: teams are numbered through the segments, R rows each (of both weights in turn when paired).
struct GemvPlace {
  int segment, row0;
};
DEVICE GemvPlace gemv_place(const GemvArgs& a, int team) {
  if (a.paired) return GemvPlace{0, team * kGemvRows / 2};
  int segment = 0, first = 0;
  UNROLL for (int i = 1; i < kGemvMaxSegments; i++) {  // constant indices: arguments stay out of local memory
    if (i < a.segment_count && team >= a.segments[i].first_team) {
      segment = i;
      first = a.segments[i].first_team;
    }
  }
  return GemvPlace{segment, (team - first) * kGemvRows};
}

/// The weights of a team's rows at `group`. `expert`: 0 without experts, -1 for the shared one.
template <class F>
DEVICE void gemv_load(typename F::Raw (&w)[kGemvRows], const GemvArgs& a, const GemvPlace& place, int expert, int group) {
  const int apart = a.paired;  // rows alternate between two weights
  const GemvSegment& s0 = a.segments[place.segment];
  const GemvSegment& s1 = a.segments[apart ? 1 : place.segment];
  const int rows = s0.rows, last = rows - 1;
  const u8 *data0 = s0.data, *data1 = s1.data;
  u64 elements0 = s0.elements, elements1 = s1.elements, start = 0;
  int k = a.k;
  if (a.expert_ids) {
    if (a.joined) {
      k = a.joined;
      const int each = k / F::kGroup, place_in_row = group / each;
      group -= place_in_row * each;
      expert = place_in_row < a.experts_chosen ? a.expert_ids[place_in_row] : -1;
    }
    if (expert < 0) {
      data0 = a.shared_data[0];
      data1 = apart ? a.shared_data[1] : a.shared_data[0];
      elements0 = elements1 = a.shared_elements;
    } else {
      start = (u64)expert * (u64)((u32)rows * (u32)k);
    }
  }
  UNROLL for (int r = 0; r < kGemvRows; r++) {
    const u32 row = (u32)gpu_min_i(place.row0 + (r >> apart), last);
    w[r] = F::load(r & 1 ? WeightView{data1, elements1} : WeightView{data0, elements0}, start + (u64)row * (u64)(u32)k, group);
  }
}

/// What a sum meets, loaded while it is computed.
struct GemvBefore {
  float residual, x0, x1, x2;
  F4 taps;
};
DEVICE GemvBefore gemv_before(const GemvArgs& a, const GemvPlace& place, int r, int m) {
  GemvBefore before{0, 0, 0, 0, F4{0, 0, 0, 0}};
  const int which = a.paired ? r & 1 : place.segment, rows = a.segments[which].rows;
  const int row = gpu_min_i(a.paired ? place.row0 + r / 2 : place.row0 + r, rows - 1);
  if (which != 0 || m >= a.m) return before;
  if (a.residual) before.residual = (a.residual_from ? a.residual_from : a.residual)[(u64)m * (u64)rows + (u64)row];
  if (a.conv_weight) {
    const u64 step = (u64)rows;
    const float* state = a.sequences[m].conv + (u64)a.layer * 4 * step + (u64)row;
    before.x0 = state[step];
    before.x1 = state[2 * step];
    before.x2 = state[3 * step];
    before.taps = ((const F4*)a.conv_weight)[row];
  }
  return before;
}

/// What happens to the sum v of row r of a team and row m of x: see GemvArgs. `gate` is the sum of row r - 1.
DEVICE void gemv_finish(const GemvArgs& a, const GemvPlace& place, const GemvBefore& before, float v, float gate, int r, int m) {
  const int which = a.paired ? r & 1 : place.segment;
  const GemvSegment& s = a.segments[which];
  const int row = a.paired ? place.row0 + r / 2 : place.row0 + r;
  if (row >= s.rows || m >= a.m) return;
  if (s.bias) v += s.bias[row];
  const u64 to = (u64)m * (u64)s.rows + (u64)row;
  if (s.out) s.out[to] = v;
  if (a.residual && which == 0) a.residual[to] = before.residual + v;
  if (a.paired && which == 1) {
    if (a.segments[0].bias) gate += a.segments[0].bias[row];
    float product = gpu_silu(gate) * v;
    if (a.expert_weights) product *= m < a.experts_chosen ? a.expert_weights[m] : gpu_sigmoid(a.shared_logit[0]);
    a.swiglu_out[to] = product;
  }
  if (a.conv_weight && which == 0) {
    float sum = before.taps.x * before.x0;
    sum = gpu_fma(before.taps.y, before.x1, sum);
    sum = gpu_fma(before.taps.z, before.x2, sum);
    sum = gpu_fma(before.taps.w, v, sum);
    a.conv_out[to] = gpu_silu(sum);
    const u64 step = (u64)s.rows;
    float* state = a.sequences[m].conv + (u64)a.layer * 4 * step + (u64)row;
    state[0] = before.x0;
    state[step] = before.x1;
    state[2 * step] = before.x2;
    state[3 * step] = v;
  }
}
