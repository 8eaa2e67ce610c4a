// Products of one token's row with the rows of up to four weights: projections and what comes after a mixer. A block of 512 threads
// copies its rows to shared memory while the kernel before runs, so that they are there when the input is: 14 MB of a 35B's
// projections fit into that of 128 multiprocessors. A warp takes rounds * R rows. With R = 1 (few rows) as with R = 3 a row's sum is
// per lane over its groups in order, then over the lanes in the same tree. Where a delta rule follows, its convolution, gates and
// SiLU are applied on the way out.
#pragma once

#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/layer_input.h"
#include "backend/cuda/kernels/token_input.h"

/// Products with rows first .. first + R - 1: lane l has that of row l & 3 (R = 3), every lane that of the one (R = 1).
template <class F, int R>
DEVICE float row_products(const StagedRows<F>& staged, int first, const Int8Row& x) {
  const int lane = tid_x() & 31, groups = staged.k / F::kGroup;
  float acc[R];
  UNROLL for (int r = 0; r < R; r++) acc[r] = 0;
  NO_UNROLL for (int g = lane; g < groups; g += 32) {
    UNROLL for (int r = 0; r < R; r++) acc[r] += F::dot(staged.load(first + r, g), x, g);
  }
  if constexpr (R == 3) {
    return warp_sums(acc[0], acc[1], acc[2], 0.0f, lane);
  } else {
    float v = acc[0];
    UNROLL for (int mask = 1; mask < 32; mask *= 2) v += gpu_shuffle_xor(v, mask);
    return v;
  }
}

template <class F, int R>
DEVICE void token_rows(const TokenRowsArgs& p, u8* memory) {
  const int t = tid_x(), lane = t & 31, warp = t >> 5, k = p.k, quads = k / 4, rows_of_block = kLayerWarps * R * p.rounds;
  const bool gates = bid_x() >= p.blocks;  // this block's rows are of a and b
  const int first = gates ? (bid_x() - p.blocks) * kTokenGateRows : bid_x() * rows_of_block;
  const int all = gates ? 2 * p.heads : p.rows, count = gpu_min_i(gates ? kTokenGateRows : rows_of_block, all - first);
  Mailbox* mail = (Mailbox*)memory;
  float* squares = (float*)(mail + 2);  // [warps]
  const Int8Row x = Int8Row::at((u8*)(squares + kLayerWarps), k);
  u8* rows = (u8*)(squares + kLayerWarps) + Int8Row::bytes(k);
  const StagedRows<F> staged{rows, rows_of_block, k};

  // The row that this lane finishes.
  const int local = R == 1 ? warp * p.rounds + lane : (warp * p.rounds + (lane >> 2)) * R + (lane & 3), row = first + local;
  const bool mine = !gates && local < count && (R == 1 ? lane < p.rounds : lane < 4 * p.rounds && (lane & 3) < R);
  int segment = 0, start = 0;
  UNROLL for (int i = 1; i < kTokenSegments; i++) {
    if (i < p.segments && row >= p.first_row[i]) {
      segment = i;
      start = p.first_row[i];
    }
  }
  const bool convolves = mine && p.conv_weight && segment == 0;

  const auto stage_gates = [&](auto format) {
    typedef decltype(format) G;
    const StagedRows<G> to{rows, kTokenGateRows, k};
    const int from_a = gpu_min_i(count, gpu_max_i(p.heads - first, 0));  // rows of a before those of b
    gpu_expect(mail, staged_bytes<G>(count, k));
    if (from_a > 0) stage_rows<G>(to, 0, p.a, first, from_a, mail);
    if (from_a < count) stage_rows<G>(to, from_a, p.b, first + from_a - p.heads, count - from_a, mail);
  };
  if (t == 0) {
    if (gates) {
      if (p.gate_format == kGateQ8_0) stage_gates(WarpQ8_0());
      else stage_gates(WarpQ4_0());
    } else {
      gpu_expect(mail, staged_bytes<F>(count, k));
      UNROLL for (int i = 0; i < kTokenSegments; i++) {  // constant indices: arguments stay out of local memory
        if (i >= p.segments) continue;
        const int begin = p.first_row[i], end = i + 1 < p.segments ? p.first_row[i + 1 < kTokenSegments ? i + 1 : i] : p.rows;
        const int from = gpu_max_i(first, begin), to = gpu_min_i(first + count, end);
        if (from < to) stage_rows<F>(staged, from - first, p.weights[i], from - begin, to - from, mail);
      }
    }
  }
  TokenQuads weight{};
  if (p.norm_weight) weight = token_quads([&](int i) { return ((const F4*)p.norm_weight)[i]; }, quads, kTokenThreads);
  // The convolution's state was left by the step before.
  F4 taps = F4{0, 0, 0, 0};
  float old1 = 0, old2 = 0, old3 = 0, *conv = nullptr;
  if (convolves) {
    conv = p.sequence->conv + (u64)(u32)p.layer * 4 * (u64)(u32)p.channels + (u64)(u32)row;
    taps = ((const F4*)p.conv_weight)[row];
    old1 = conv[p.channels];
    old2 = conv[2 * p.channels];
    old3 = conv[3 * p.channels];
  }
  float dt_bias = 0, neg_exp_a = 0;
  if (gates && warp < count && first + warp < p.heads) {
    dt_bias = p.dt_bias[first + warp];
    neg_exp_a = p.neg_exp_a[first + warp];
  }
  gpu_sync();  // the mailbox is ready

  gpu_wait_inputs();
  TokenQuads in = token_quads([&](int i) { return ((const F4*)p.x)[i]; }, quads, kTokenThreads);
  const float residual = mine && p.residual ? p.residual_from[row] : 0.0f;
  if (p.norm_weight) {
    token_stage_normed(in, weight, x, squares, quads, kTokenThreads);
  } else {
    if (p.head_squares) {
      UNROLL for (int j = 0; j < 2; j++) {
        const float* of_head = p.head_squares + (gpu_min_i(t + j * kTokenThreads, quads - 1) >> p.head_shift) * p.head_parts;
        float sum = 0;
        UNROLL for (int i = 0; i < 4; i++) sum += i < p.head_parts ? of_head[i] : 0.0f;
        const float scale = gpu_rsqrt_approx(gpu_fma(sum, p.inverse_head, p.head_eps));
        in.v[j] = F4{in.v[j].x * scale, in.v[j].y * scale, in.v[j].z * scale, in.v[j].w * scale};
      }
    }
    x.store(t, in.v[0], t < quads);
    if (quads > kTokenThreads) x.store(t + kTokenThreads, in.v[1], t + kTokenThreads < quads);
  }
  gpu_sync();
  gpu_let_next_start();  // not before: the next kernel's weights would be ahead of these inputs on their way
  const float scale = p.norm_weight ? token_scale(squares, kLayerWarps, p.inverse_k, p.eps) : 1.0f;
  if (p.normed && bid_x() == 0) {
    UNROLL for (int j = 0; j < 2; j++) {
      const int i = t + j * kTokenThreads;
      if (i >= quads) continue;
      const F4 v = rms_apply(in.v[j], weight.v[j], scale);
      ((F4*)p.normed)[i] = v;
      if (p.normed_copy) ((F4*)p.normed_copy)[i] = v;
    }
  }
  gpu_receive(mail);

  if (gates) {
    float v = 0;
    if (p.gate_format == kGateQ8_0) v = row_products<WarpQ8_0, 1>(StagedRows<WarpQ8_0>{rows, kTokenGateRows, k}, warp, x);
    else v = row_products<WarpQ4_0, 1>(StagedRows<WarpQ4_0>{rows, kTokenGateRows, k}, warp, x);
    v *= scale;
    if (lane == 0 && warp < count) {
      const int gate = first + warp;
      if (gate < p.heads) p.decay[gate] = gpu_exp(gdn_log_decay(v, dt_bias, neg_exp_a));
      else p.beta[gate - p.heads] = gpu_sigmoid(v);
    }
    return;
  }
  float v = 0;
  NO_UNROLL for (int round = 0; round < p.rounds; round++) {
    const float sum = row_products<F, R>(staged, (warp * p.rounds + round) * R, x);
    if ((R == 1 ? lane : lane >> 2) == round) v = sum * scale;
  }
  if (!mine) return;
  if (convolves) {
    float sum = taps.x * old1;
    sum = gpu_fma(taps.y, old2, sum);
    sum = gpu_fma(taps.z, old3, sum);
    p.conv_out[row] = gpu_silu(gpu_fma(taps.w, v, sum));
    conv[0] = old1;
    conv[p.channels] = old2;
    conv[2 * p.channels] = old3;
    conv[3 * p.channels] = v;
    return;
  }
  if (p.residual) {
    p.residual[row] = residual + v;
    return;
  }
  float* out = p.out[0];
  UNROLL for (int i = 1; i < kTokenSegments; i++) {
    if (i == segment) out = p.out[i];
  }
  out[row - start] = p.conv_weight ? gpu_silu(v) : v;
}
