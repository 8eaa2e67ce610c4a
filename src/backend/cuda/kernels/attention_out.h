// What follows attention_step for one token, as one kernel: the pages joined, the gate, the output projection. A cluster of 8
// blocks takes 256 columns of the projection (one head of 256 dimensions), a block 32 of them: it joins their pages, tells the others
// the values as int8, and multiplies its eighth of the rows; the next kernel adds the clusters' sums (layer_input.h).
// grid: 8 a cluster; 512 threads. Lanes share the pages by 64, sums are joined in a fixed tree: a result depends on the position alone.
#pragma once

#include "backend/cuda/kernels/kv_cache.h"
#include "backend/cuda/kernels/layer_input.h"

struct AttentionOutShared {
  Mailbox* box;
  Int8Row row;
  float *maximum, *total;  // [warps]
  F4* parts;               // [warps][8]

  DEVICE_M explicit AttentionOutShared(u8* memory) {
    row = Int8Row::at(memory, kAttentionOutColumns);
    parts = (F4*)(memory + Int8Row::bytes(kAttentionOutColumns));
    maximum = (float*)(parts + kLayerWarps * 8);
    total = maximum + kLayerWarps;
    box = (Mailbox*)(total + kLayerWarps);
  }
};

template <class F>
DEVICE void attention_out(const AttentionOutArgs& p, u8* memory) {
  constexpr int kGroups = kAttentionOutColumns / 32, kLanes = kLayerThreads / 8, kShift = 3, kAhead = 3;
  const int t = tid_x(), lane = t & 31, warp = t >> 5, rank = bid_x() % kLayerCluster, cluster = bid_x() / kLayerCluster;
  const AttentionOutShared shared(memory);
  if (t == 0) gpu_expect(shared.box, kGroups * (32 + 16));
  gpu_cluster_arrive();
  const auto column_group = [&](int i) { return cluster * kGroups + i; };
  LayerOutput<F, 2, decltype(column_group)> output{p.weight, column_group, p.columns, p.hidden, kGroups, kShift, rank, {}};
  output.prefetch();
  const int column = cluster * kAttentionOutColumns + rank * 32, head = column / p.head_dim, dim = column % p.head_dim;
  const int pages = p.sequence->past_tokens / kPageTokens + 1;  // before the inputs: the host copied it
  const int quad = t & 7, share = t >> 3;
  gpu_cluster_wait();

  gpu_wait_inputs();
  const float gate = p.q_gate[head * 2 * p.head_dim + p.head_dim + dim + lane];
  const F2* stat = (const F2*)p.partial_stat + head * p.splits;
  const float* values = p.partial + (u64)(u32)(head * p.splits) * (u64)(u32)p.head_dim + dim;
  float largest = -3.0e38f, total = 0;
  F4 sum = F4{0, 0, 0, 0};
  NO_UNROLL for (int from = share; from < pages; from += kAhead * kLanes) {
    F2 st[kAhead];
    F4 v[kAhead];
    UNROLL for (int i = 0; i < kAhead; i++) {
      const int page = gpu_min_i(from + i * kLanes, pages - 1);
      st[i] = stat[page];
      v[i] = ((const F4*)(values + (u64)(u32)(page * p.head_dim)))[quad];
    }
    UNROLL for (int i = 0; i < kAhead; i++) {
      if (from + i * kLanes >= pages) continue;
      const float most = gpu_max(largest, st[i].x), before = gpu_exp(largest - most), now = gpu_exp(st[i].x - most);
      total = gpu_fma(now, st[i].y, total * before);
      sum.x = gpu_fma(now, v[i].x, sum.x * before);
      sum.y = gpu_fma(now, v[i].y, sum.y * before);
      sum.z = gpu_fma(now, v[i].z, sum.z * before);
      sum.w = gpu_fma(now, v[i].w, sum.w * before);
      largest = most;
    }
  }
  const int warps = gpu_min_i((pages + 3) / 4, kLayerWarps);  // that have pages
  if (gpu_warp_has(warp < warps)) {
    float most = gpu_max(largest, gpu_shuffle_xor(largest, 8));
    most = gpu_max(most, gpu_shuffle_xor(most, 16));
    const float factor = gpu_exp(largest - most);
    total *= factor;
    sum = F4{sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
    UNROLL for (int mask = 8; mask < 32; mask *= 2) {
      total += gpu_shuffle_xor(total, mask);
      sum.x += gpu_shuffle_xor(sum.x, mask);
      sum.y += gpu_shuffle_xor(sum.y, mask);
      sum.z += gpu_shuffle_xor(sum.z, mask);
      sum.w += gpu_shuffle_xor(sum.w, mask);
    }
    if (lane < 8) store_block(shared.parts + warp * 8 + lane, sum);
    if (lane == 0) {
      shared.maximum[warp] = most;
      shared.total[warp] = total;
    }
  }
  gpu_let_next_start();
  gpu_sync();
  if (gpu_warp_has(warp == 0)) {
    float most = shared.maximum[0], all = 0, value = 0;
    NO_UNROLL for (int w = 1; w < warps; w++) most = gpu_max(most, shared.maximum[w]);
    UNROLL4 for (int w = 0; w < warps; w++) {
      const float factor = gpu_exp(shared.maximum[w] - most);
      all = gpu_fma(factor, shared.total[w], all);
      value = gpu_fma(factor, ((const float*)shared.parts)[w * 32 + lane], value);
    }
    const QuantisedGroup q = quantise_group(value / all * gpu_sigmoid(gate), lane);
    if (warp == 0) {
      float* word = (float*)shared.row.words + Int8Row::swizzle(2 * rank + (lane >> 4)) * 4 + (lane >> 2 & 3);
      gpu_send(word, lane & 3, as_f32(q.word), shared.box);
      gpu_send(word, (lane & 3) + 4, as_f32(q.word), shared.box);
      if (lane < kLayerCluster) gpu_send(shared.row.blocks + rank, lane, q.block, shared.box);
    }
  }
  gpu_receive(shared.box);
  output.finish(shared.row, p.partials + cluster * p.hidden);
}
