// A Gated DeltaNet layer for one token as one kernel: the residual stream summed and normed, input projections, convolution, the delta
// rule, gated norm, output projection (gdn_recurrent.h has the formulas). A cluster of 8 blocks takes one head, a block an eighth of
// its dimensions: of the rows of q, k, v and z, and of the state's columns. Blocks tell each other q and k and the gated outputs
// through shared memory; the output projection's columns of the cluster's head are multiplied here too, and the next kernel adds the
// clusters' sums. One launch where there were three. For models with as many key heads as value heads. (With two value heads a key head,
// 35B, a block's rows leave no room for a second kernel beside it, and it won nothing: 445 against 449 tok/s on an H200.)
// grid: 8 a head; 512 threads. Shared memory: GdnLayerShared.
#pragma once

#include "backend/cuda/kernels/gdn_math.h"
#include "backend/cuda/kernels/layer_input.h"
#include "backend/cuda/kernels/quads.h"

template <class F, int D>
struct GdnLayerShared {
  static constexpr int S = D / kLayerCluster;  // dimensions of a head that a block takes
  LayerMail* mail;
  float *q, *k;             // [D] after the convolution
  float *v, *z;             // [S]
  LayerGates gates;         // partial sums of a and b
  float *gated;             // [D] before the norm's scale
  float *squares;           // [D / 4] of its values, by fours
  float *state;             // [D][S]
  LayerX x;
  Int8Row out_row;
  StagedRows<F> rows;

  DEVICE_M GdnLayerShared(u8* memory, int hidden, int groups) {
    mail = (LayerMail*)memory;
    float* next = (float*)(mail + 1);
    const auto take = [&](int count) {
      float* from = next;
      next += count;
      return from;
    };
    q = take(D);
    k = take(D);
    v = take(S);
    z = take(S);
    gated = take(D);
    squares = take(D / 4);
    state = take(D * S);
    x.squares = take(groups);
    gates = LayerGates{0, 0, take(groups), take(groups)};
    x.row = Int8Row::at((u8*)take(Int8Row::bytes(hidden) / 4), hidden);
    out_row = Int8Row::at((u8*)take(Int8Row::bytes(D) / 4), D);
    rows = StagedRows<F>{(const u8*)next, 4 * S, hidden};
  }
};

/// Value `at` of a row of a or b.
DEVICE float gate_weight(const LayerWeight& weight, int format, u64 row_start, int at) {
  const u64 i = row_start + (u64)(u32)at;
  const u16* halves = (const u16*)weight.data;
  switch (format) {
    case kGateQ8_0: return (float)(s8)weight.data[i] * half_to_f32(((const u16*)(weight.data + weight.elements))[i / 32]);
    case kGateQ4_0: {
      const u8 pair = weight.data[i / 32 * 16 + i % 16];
      return (float)((i % 32 < 16 ? pair & 15 : pair >> 4) - 8) * half_to_f32(((const u16*)(weight.data + weight.elements / 2))[i / 32]);
    }
    case kGateF32: return ((const float*)weight.data)[i];
    case kGateF16: return half_to_f32(halves[i]);
    default: return bf16_to_f32(halves[i]);
  }
}

template <class F, int D>
DEVICE void gdn_layer(const GdnLayerArgs& p, u8* memory) {
  constexpr int S = D / kLayerCluster, kRows = D / 32, groups = D / 32;
  const int t = tid_x(), lane = t & 31, warp = t >> 5, rank = bid_x() % kLayerCluster, head = bid_x() / kLayerCluster;
  const int heads = p.heads, hidden = p.in.hidden, channels = 3 * heads * D;
  const GdnLayerShared<F, D> shared(memory, hidden, p.in.groups);
  LayerMail* mail = shared.mail;
  // Rows by segments of S: q, k, v, z. The row of qkv, or of z.
  const auto row_of = [&](int local) { return ((local / S < 3 ? local / S : 0) * heads + head) * D + rank * S + local % S; };

  if (t == 0) {
    layer_expect(mail, staged_bytes<F>(4 * S, hidden), shared.x.sent(p.in) + 8 * p.in.groups, 8 * D, 5 * D);
    NO_UNROLL for (int local = 0; local < 4 * S; local += S) {
      stage_rows<F>(shared.rows, local, local < 3 * S ? p.qkv : p.z, row_of(local), S, &mail->rows);
    }
  }
  gpu_cluster_arrive();
  const float norm_weight = layer_norm_weight(p.in, rank), dt_bias = p.dt_bias[head], neg_exp_a = p.neg_exp_a[head];
  const int at = gpu_min_i(rank + kLayerCluster * warp, p.in.groups - 1) * 32 + lane;  // the value that layer_input gives this lane
  LayerGates gates = shared.gates;
  gates.a = gate_weight(p.a, p.gate_format, (u64)(u32)head * (u64)(u32)hidden, at);
  gates.b = gate_weight(p.b, p.gate_format, (u64)(u32)head * (u64)(u32)hidden, at);
  const int local = 4 * warp + (lane & 3), channel = local < 3 * S ? row_of(local) : -1;  // of the row that this lane finishes
  F4 taps = F4{0, 0, 0, 0};
  if (channel >= 0) taps = ((const F4*)p.conv_weight)[channel];
  const bool busy = warp < S / 4;  // with four columns of the state, in the delta rule
  const int column = 4 * (warp % (S / 4));
  const float gated_weight = p.norm[rank * S + column + (lane & 3)];
  const auto column_group = [&](int i) { return head * groups + i; };
  LayerOutput<F, 1, decltype(column_group)> output{p.out, column_group, heads * D, hidden, groups, p.out_lanes_shift, rank, {}};
  output.prefetch();
  // States are of earlier steps, which a copy from the host ended.
  float* conv = p.sequence->conv + (u64)(u32)p.layer * 4 * (u64)(u32)channels + (u64)(u32)gpu_max_i(channel, 0);
  float old1 = 0, old2 = 0, old3 = 0;
  if (channel >= 0) {
    old1 = conv[channels];
    old2 = conv[2 * channels];
    old3 = conv[3 * channels];
  }
  float* state = p.sequence->recurrent + (u64)(u32)(p.layer * heads + head) * D * D + rank * S;
  NO_UNROLL for (int i = t; i < D * (S / 4); i += kLayerThreads) {
    gpu_copy16_async(shared.state + 4 * i, state + i / (S / 4) * D + 4 * (i % (S / 4)));
  }
  gpu_cluster_wait();

  gpu_wait_inputs();
  layer_input(p.in, shared.x, norm_weight, rank, head == 0, gates, &mail->input);
  gpu_receive(&mail->input);
  gpu_let_next_start();  // not before: the next kernel's weights would be ahead of these inputs on their way

  const float scale = layer_scale(p.in, shared.x);
  gpu_receive(&mail->rows);
  if (gpu_warp_has(4 * warp < 4 * S)) {
    const auto row = [&](int r) { return gpu_min_i(4 * warp, 4 * S - 4) + r; };
    const float v = four_products<F>(shared.rows, row, shared.x, 0, 1) * scale;
    float sum = taps.x * old1;
    sum = gpu_fma(taps.y, old2, sum);
    sum = gpu_fma(taps.z, old3, sum);
    const float convolved = gpu_silu(gpu_fma(taps.w, v, sum));
    const int segment = local / S, within = local % S;
    if (segment < 2) gpu_send((segment ? shared.k : shared.q) + rank * S + within, lane >> 2, convolved, &mail->made);
    if (lane < 4 && segment == 2) shared.v[within] = convolved;
    if (lane < 4 && segment == 3) shared.z[within] = gpu_silu(v);
    if (lane < 4 && segment < 3) {
      conv[0] = old1;
      conv[channels] = old2;
      conv[2 * channels] = old3;
      conv[3 * channels] = v;
    }
  }
  float decay = 0, beta = 0;
  if (gpu_warp_has(busy)) {
    decay = gpu_exp(gdn_log_decay(sum_of_groups(gates.a_parts, p.in.groups) * scale, dt_bias, neg_exp_a));
    beta = gpu_sigmoid(sum_of_groups(gates.b_parts, p.in.groups) * scale);
  }
  gpu_wait_copies();
  gpu_sync();  // v, z and the state, which this block made for itself
  gpu_receive(&mail->made);

  // The delta rule: a warp takes four columns, a lane every 32nd row of them. All sums are of what is there before the step, so that
  // one round of shuffles does: with S' = exp(g) S, S'^T k = exp(g) S^T k, and y = (S' + k delta^T)^T q = exp(g) S^T q + (k q) delta.
  if (gpu_warp_has(busy)) {
    const int mine = column + (lane & 3);
    const float v = shared.v[mine], gate = shared.z[mine] * gated_weight;
    float q[kRows], k[kRows], qq = 0, kk = 0, kq = 0;
    F4 s[kRows], sk = F4{0, 0, 0, 0}, sq = F4{0, 0, 0, 0};
    UNROLL for (int i = 0; i < kRows; i++) {
      q[i] = shared.q[lane + 32 * i];
      k[i] = shared.k[lane + 32 * i];
      qq = gpu_fma(q[i], q[i], qq);
      kk = gpu_fma(k[i], k[i], kk);
      kq = gpu_fma(k[i], q[i], kq);
      s[i] = *(const F4*)(shared.state + (lane + 32 * i) * S + column);
      add_scaled(sk, s[i], k[i]);
      add_scaled(sq, s[i], q[i]);
    }
    const float sum_k = warp_sums(sk.x, sk.y, sk.z, sk.w, lane), sum_q = warp_sums(sq.x, sq.y, sq.z, sq.w, lane);
    const float head_scale = D == 128 ? 0.0883883476f : 0.125f;  // D^-1/2
    const float q_scale = gpu_rsqrt_approx(warp_total(qq) + 1e-6f) * head_scale, k_scale = gpu_rsqrt_approx(warp_total(kk) + 1e-6f);
    const float delta = (v - decay * k_scale * sum_k) * beta * k_scale;  // times k as it is
    const float y = q_scale * gpu_fma(warp_total(kq), delta, decay * sum_q);
    float squares = y * y;
    squares += gpu_shuffle_xor(squares, 1);
    squares += gpu_shuffle_xor(squares, 2);
    const int dim = rank * S + column;
    if (busy) {
      gpu_send(shared.gated + dim + (lane & 3), lane >> 2, y * gate, &mail->gated);
      if (lane < kLayerCluster) gpu_send(shared.squares + dim / 4, lane, squares, &mail->gated);
    }
    // Every lane needs the deltas of all four columns.
    const float d1 = gpu_shuffle_xor(delta, 1), d2 = gpu_shuffle_xor(delta, 2), d3 = gpu_shuffle_xor(d1, 2);
    const bool odd = lane & 1, upper = lane & 2;
    const float e0 = odd ? d1 : delta, e1 = odd ? delta : d1, e2 = odd ? d3 : d2, e3 = odd ? d2 : d3;
    const F4 deltas = upper ? F4{e2, e3, e0, e1} : F4{e0, e1, e2, e3};
    UNROLL for (int i = 0; i < kRows; i++) {
      s[i].x = gpu_fma(k[i], deltas.x, decay * s[i].x);
      s[i].y = gpu_fma(k[i], deltas.y, decay * s[i].y);
      s[i].z = gpu_fma(k[i], deltas.z, decay * s[i].z);
      s[i].w = gpu_fma(k[i], deltas.w, decay * s[i].w);
      if (busy) store_block((F4*)(state + (lane + 32 * i) * D + column), s[i]);
    }
  }
  gpu_receive(&mail->gated);

  if (gpu_warp_has(warp < groups)) {  // The gated outputs as int8, 32 a warp.
    const int group = gpu_min_i(warp, groups - 1);
    const float total = warp_total(lane < D / 4 ? shared.squares[lane] : 0.0f);
    const float gated = shared.gated[group * 32 + lane] * gpu_rsqrt_approx(total * (1.0f / D) + p.eps);
    const QuantisedGroup quantised = quantise_group(gated, lane);
    if (warp < groups) store_group(shared.out_row, group, quantised, lane);
  }
  gpu_sync();
  output.finish(shared.out_row, p.partials + head * hidden);
}
