// Products of the normed residual stream with the rows of up to four weights for one token: what comes before attention. Blocks of 512
// threads in clusters of 8, which share the input (layer_input.h); a block takes `rows_of_block` rows, 4 at a time by 2^split_shift
// warps.
#pragma once

#include "backend/cuda/kernels/layer_input.h"

template <class F>
DEVICE void input_rows(const InputRowsArgs& p, u8* memory) {
  const int t = tid_x(), lane = t & 31, warp = t >> 5, rank = bid_x() % kLayerCluster, hidden = p.in.hidden;
  const int first = bid_x() * p.rows_of_block, all = p.rows;
  const int rows = gpu_max_i(gpu_min_i(p.rows_of_block, all - first), 0), split = 1 << p.split_shift;
  LayerMail* mail = (LayerMail*)memory;
  float* partial = (float*)(mail + 1);  // [warps][4]
  LayerX x;
  x.squares = partial + 4 * kLayerWarps;
  u8* next = (u8*)(x.squares + p.in.groups);
  x.row = Int8Row::at(next, hidden);
  const StagedRows<F> staged{next + Int8Row::bytes(hidden), p.rows_of_block, hidden};
  const auto segment_of = [&](int row) {
    int segment = 0;
    UNROLL for (int i = 1; i < kInputRowsSegments; i++) segment += i < p.segments && row >= p.first_row[i];
    return segment;
  };

  if (t == 0) {
    layer_expect(mail, staged_bytes<F>(rows, hidden), x.sent(p.in), 0, 0);
    UNROLL for (int i = 0; i < kInputRowsSegments; i++) {  // constant indices: arguments stay out of local memory
      if (i >= p.segments) continue;
      const int start = p.first_row[i], end = i + 1 < p.segments ? p.first_row[i + 1 < kInputRowsSegments ? i + 1 : i] : all;
      const int from = gpu_max_i(first, start), to = gpu_min_i(first + rows, end);
      if (from < to) stage_rows<F>(staged, from - first, p.weights[i], from - start, to - from, &mail->rows);
    }
  }
  gpu_cluster_arrive();
  const float norm_weight = layer_norm_weight(p.in, rank);
  gpu_cluster_wait();

  gpu_wait_inputs();
  const bool first_cluster = bid_x() < kLayerCluster;
  const float weighted = layer_input(p.in, x, norm_weight, rank, first_cluster, LayerGates{0, 0, nullptr, nullptr}, &mail->input);
  gpu_receive(&mail->input);
  gpu_let_next_start();

  const float scale = layer_scale(p.in, x);
  gpu_receive(&mail->rows);
  const int group = rank + kLayerCluster * warp;
  if (first_cluster && p.normed && group < p.in.groups) {
    p.normed[group * 32 + lane] = weighted * scale;
    if (p.normed_copy) p.normed_copy[group * 32 + lane] = weighted * scale;
  }
  NO_UNROLL for (int from = 0; from < p.rows_of_block; from += 4 * (kLayerWarps >> p.split_shift)) {
    const int local = from + 4 * (warp >> p.split_shift);
    const auto row_at = [&](int r) { return gpu_min_i(local + r, p.rows_of_block - 1); };
    float v = four_products<F>(staged, row_at, x, warp & (split - 1), split);
    if (split > 1) {
      if (lane < 4) partial[4 * warp + lane] = v;
      gpu_sync();
      if ((warp & (split - 1)) == 0 && lane < 4) {
        for (int i = 1; i < split; i++) v += partial[4 * (warp + i) + lane];
      }
      gpu_sync();
    }
    const int row = first + local + lane;
    if (lane >= 4 || local + lane >= rows || (warp & (split - 1)) != 0) continue;
    float* out = p.out[0];
    int start = 0;
    UNROLL for (int i = 1; i < kInputRowsSegments; i++) {
      if (i == segment_of(row)) {
        out = p.out[i];
        start = p.first_row[i];
      }
    }
    out[row - start] = v * scale;
  }
}
