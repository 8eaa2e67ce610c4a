// The dense FFN of a layer for one token as one kernel: the residual stream summed and normed, gate, up, SwiGLU, down. A cluster of 8
// blocks takes `width` of the inner dimension, a block an eighth of it; blocks tell each other what they made, multiply it with the
// cluster's columns of `down`, and the next kernel adds the clusters' sums. grid: 8 a cluster; 512 threads.
#pragma once

#include "backend/cuda/kernels/layer_input.h"

template <class F>
DEVICE void ffn_layer(const FfnLayerArgs& p, u8* memory) {
  const int t = tid_x(), lane = t & 31, warp = t >> 5, rank = bid_x() % kLayerCluster, cluster = bid_x() / kLayerCluster;
  const int hidden = p.in.hidden, rows = p.width / kLayerCluster, row0 = cluster * p.width + rank * rows, groups = p.width / 32;
  LayerMail* mail = (LayerMail*)memory;
  float* products = (float*)(mail + 1);  // [width]
  LayerX x;
  x.squares = products + p.width;
  u8* next = (u8*)(x.squares + p.in.groups);
  x.row = Int8Row::at(next, hidden);
  next += Int8Row::bytes(hidden);
  const Int8Row inner = Int8Row::at(next, p.width);
  const StagedRows<F> staged{next + Int8Row::bytes(p.width), 2 * rows, hidden};  // of gate, then of up

  if (t == 0) {
    layer_expect(mail, staged_bytes<F>(2 * rows, hidden), x.sent(p.in), 4 * p.width, 0);
    stage_rows<F>(staged, 0, p.gate, row0, rows, &mail->rows);
    stage_rows<F>(staged, rows, p.up, row0, rows, &mail->rows);
  }
  gpu_cluster_arrive();
  const float norm_weight = layer_norm_weight(p.in, rank);
  const auto column_group = [&](int i) { return cluster * groups + i; };
  LayerOutput<F, 2, decltype(column_group)> output{p.down, column_group, p.inner, hidden, groups, p.out_lanes_shift, rank, {}};
  output.prefetch();
  gpu_cluster_wait();

  gpu_wait_inputs();
  layer_input(p.in, x, norm_weight, rank, cluster == 0, LayerGates{0, 0, nullptr, nullptr}, &mail->input);
  gpu_receive(&mail->input);
  gpu_let_next_start();

  const float scale = layer_scale(p.in, x);
  gpu_receive(&mail->rows);
  NO_UNROLL for (int from = 0; from < rows; from += 2 * kLayerWarps) {
    const int pair = from + 2 * warp;  // rows pair and pair + 1 of gate and of up
    if (!gpu_warp_has(pair < rows)) continue;
    const auto row = [&](int r) { return (r & 1) * rows + gpu_min_i(pair, rows - 2) + (r >> 1); };
    const float v = four_products<F>(staged, row, x, 0, 1) * scale, gate = gpu_shuffle_xor(v, 1);
    if ((lane & 1) && pair < rows) gpu_send(products + rank * rows + pair + (lane >> 1 & 1), lane >> 2, gpu_silu(gate) * v, &mail->made);
  }
  gpu_receive(&mail->made);

  NO_UNROLL for (int from = 0; from < groups; from += kLayerWarps) {
    if (!gpu_warp_has(from + warp < groups)) continue;
    const int group = gpu_min_i(from + warp, groups - 1);
    const QuantisedGroup quantised = quantise_group(products[group * 32 + lane], lane);
    if (from + warp < groups) store_group(inner, group, quantised, lane);
  }
  gpu_sync();
  output.finish(inner, p.partials + cluster * hidden);
}
