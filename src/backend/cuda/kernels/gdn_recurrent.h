// Decode step of Gated DeltaNet, one kernel a layer: L2 norm of q and k, gates, the delta rule, gated RMS norm.
//   S = exp(g) S; S += k (beta (v - S^T k))^T; y = S^T q D^-1/2; out = rms_norm(y) * norm * silu(z)
// Grid (value heads, sequences), 4 D threads: thread (quarter, column) holds D / 4 values of S in registers, so the state is
// read and written once (it is nearly all of the traffic: 64 KB a head at D = 128). One block a head rather than four, because
// the gated norm needs the whole head. 62 registers at D = 128: 512 threads just fit the 32768 of a Fermi multiprocessor.
// A sequence with several rows is walked through in order (the state stays in registers).
#pragma once

#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gdn_math.h"

template <int D>
DEVICE void gdn_recurrent(const GdnArgs& p) {
  SHARED F4 q4[D / 4], k4[D / 4], partial4[D], scratch4[24];
  float *q = (float*)q4, *k = (float*)k4, *partial = (float*)partial4, *scratch = (float*)scratch4;
  const int h = bid_x(), t = tid_x(), column = t % D, quarter = t / D;
  const int kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const u64 channels = (u64)(2 * p.num_k_heads + p.num_v_heads) * D;
  gpu_let_next_start();
  const float dt_bias = p.dt_bias[h], neg_exp_a = p.neg_exp_a[h];
  gpu_wait_inputs();
  const StepSequence sequence = p.sequences[bid_y()];
  if (sequence.num_rows > p.recurrent_rows) return;  // the whole block
  float* state = sequence.recurrent + ((u64)p.layer * (u64)p.num_v_heads + (u64)h) * D * D + (u64)(quarter * (D / 4)) * D + (u64)column;
  float s[D / 4];
  UNROLL for (int i = 0; i < D / 4; i++) s[i] = state[i * D];
  for (int r = 0; r < sequence.num_rows; r++) {
    const u64 row = (u64)(sequence.first_row + r);
    const float* x = p.conv_out + row * channels;
    const u64 gate_at = row * (u64)p.num_v_heads + (u64)h;
    if (t < D) q[t] = x[kh * D + t];
    else if (t < 2 * D) k[t - D] = x[(p.num_k_heads + kh) * D + t - D];
    const float v = x[(2 * p.num_k_heads + h) * D + column];
    const float decay = gpu_exp(gdn_log_decay(p.a[gate_at], dt_bias, neg_exp_a)), beta = gpu_sigmoid(p.b[gate_at]);
    gpu_sync();
    if (t < 32) square_sums<D>(q, t, scratch);
    else if (t < 64) square_sums<D>(k, t - 32, scratch + 32);
    gpu_sync();
    const float q_scale = gpu_rsqrt_approx(sum_of_32(scratch) + 1e-6f);
    const float k_scale = gpu_rsqrt_approx(sum_of_32(scratch + 32) + 1e-6f);
    const float head_scale = D == 128 ? 0.0883883476f : D == 64 ? 0.125f : 0.176776695f;  // D^-1/2
    if (t < D) q[t] = q[t] * q_scale * head_scale;
    else if (t < 2 * D) k[t - D] *= k_scale;
    gpu_sync();
    float acc = 0;
    const F4 *kq = k4 + quarter * (D / 16), *qq = q4 + quarter * (D / 16);
    UNROLL for (int i = 0; i < D / 16; i++) {
      const F4 kk = kq[i];
      s[4 * i] *= decay;
      s[4 * i + 1] *= decay;
      s[4 * i + 2] *= decay;
      s[4 * i + 3] *= decay;
      acc = gpu_fma(s[4 * i], kk.x, acc);
      acc = gpu_fma(s[4 * i + 1], kk.y, acc);
      acc = gpu_fma(s[4 * i + 2], kk.z, acc);
      acc = gpu_fma(s[4 * i + 3], kk.w, acc);
    }
    partial[t] = acc;
    gpu_sync();
    const float predicted = (partial[column] + partial[D + column]) + (partial[2 * D + column] + partial[3 * D + column]);
    const float delta = (v - predicted) * beta;
    acc = 0;
    UNROLL for (int i = 0; i < D / 16; i++) {
      const F4 kk = kq[i], qv = qq[i];
      s[4 * i] = gpu_fma(kk.x, delta, s[4 * i]);
      s[4 * i + 1] = gpu_fma(kk.y, delta, s[4 * i + 1]);
      s[4 * i + 2] = gpu_fma(kk.z, delta, s[4 * i + 2]);
      s[4 * i + 3] = gpu_fma(kk.w, delta, s[4 * i + 3]);
      acc = gpu_fma(s[4 * i], qv.x, acc);
      acc = gpu_fma(s[4 * i + 1], qv.y, acc);
      acc = gpu_fma(s[4 * i + 2], qv.z, acc);
      acc = gpu_fma(s[4 * i + 3], qv.w, acc);
    }
    gpu_sync();
    partial[t] = acc;
    gpu_sync();
    float y = 0;
    if (t < D) {
      y = (partial[t] + partial[D + t]) + (partial[2 * D + t] + partial[3 * D + t]);
      q[t] = y;  // q has been read by everyone
    }
    gpu_sync();
    if (t < 32) square_sums<D>(q, t, scratch + 64);
    gpu_sync();
    if (t < D) {
      const u64 to = (row * (u64)p.num_v_heads + (u64)h) * D + (u64)t;
      const float scale = gpu_rsqrt_approx(sum_of_32(scratch + 64) * (1.0f / D) + p.eps);
      if (p.core_out) p.core_out[to] = y;
      p.out[to] = y * scale * p.norm[t] * gpu_silu(p.z[to]);
    }
    gpu_sync();
  }
  UNROLL for (int i = 0; i < D / 4; i++) state[i * D] = s[i];
}
