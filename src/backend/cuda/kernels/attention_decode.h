// Softmax attention of single rows over the paged cache, split over pages: a block takes one row, one KV head with up to GM of
// its query heads, and one page of 64 tokens, and leaves (maximum, sum, unnormalised output); attention_combine joins them. The
// partition is fixed by the page, so a row's result depends neither on the batch nor on the context capacity of the launch.
//   grid (pages, nkv * ceil(group / GM), rows), 256 threads; blocks past the row's position leave at once
// K passes through shared memory in tiles [64][32 dims] (pitch 33: no bank conflicts), the next tile in flight, each thread does
// (token, a quarter of a tile); V is read straight (threads own dimensions, loads are coalesced, 16 in flight). Shared: 8.4 KB tile
// + 4 GM (hd + 64 * 5) bytes, and
// 2 * 64 rows of the cache when staged.
// attention_combine: one block of 256 threads a (head, row); 256 / (hd / 4) groups share the pages. It also applies sigmoid(gate).
// From sm80 on, where it fits (p.staged), the page's K and V come to shared memory in one go instead: such a kernel is bound by how often
// it waits for memory, 12 times else. Rows there are 16 bytes apart from a multiple of 128: no bank conflicts. The sums are the same.
#pragma once

#include "backend/cuda/kernels/async_copy.h"
#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/kv_cache.h"

constexpr int kTilePitch = 33;
constexpr int kTileDims = 32;

template <int GM, int Type>
DEVICE void attention_decode(const AttentionDecodeArgs& p) {
  DYN_SHARED(F4, dynamic);
  SHARED float tile[64 * kTilePitch];
  const int t = tid_x(), hd = p.head_dim, row = p.first_row + bid_z(), split = bid_x();
  const int group = p.num_q_heads / p.num_kv_heads, parts = (group + GM - 1) / GM;
  const int kv_head = bid_y() / parts, head0 = kv_head * group + bid_y() % parts * GM;
  const int heads = gpu_min_i(GM, (kv_head + 1) * group - head0);
  float* q = (float*)dynamic;        // [hd][GM]
  float* scores = q + hd * GM;       // [5][64][GM]: four partial sums, then the probabilities
  gpu_let_next_start();
  gpu_wait_inputs();
  const StepSequence* s = p.sequences + p.row_sequence[row];
  const int position = s->past_tokens + row - s->first_row;
  const int n = gpu_min_i(64, position + 1 - split * kPageTokens);  // tokens of this page
  if (n <= 0) return;  // the whole block
#if GPU_TIER >= 80
  const bool staged = p.staged != 0;
#else
  const bool staged = false;
#endif
  constexpr int kElement = Type == 0 ? 4 : 2;
  const int pitch = hd + 16 / kElement;  // in elements
  u8* k_staged = (u8*)(scores + 5 * 64 * GM);
  u8* v_staged = k_staged + 64 * pitch * kElement;
  const u8* page = s->pages[split];
  const u64 k_at = kv_offset(p.layer, 0, kv_head, p.num_kv_heads, hd), v_at = kv_offset(p.layer, 1, kv_head, p.num_kv_heads, hd);
#if GPU_TIER >= 80
  if (staged) {
    const int units = hd * kElement / 16;  // of 16 bytes in a row
    for (int i = t; i < n * units; i += 256) {
      const int at = i / units * pitch * kElement + i % units * 16;
      gpu_copy16_async(k_staged + at, page + k_at * kElement + (u64)(u32)(i * 16));
      gpu_copy16_async(v_staged + at, page + v_at * kElement + (u64)(u32)(i * 16));
    }
  }
#endif
  for (int i = t; i < hd * GM; i += 256) {
    const int d = i / GM, g = i % GM;
    q[i] = g < heads ? p.q[((u64)row * (u64)p.num_q_heads + (u64)(head0 + g)) * (u64)hd + (u64)d] * p.scale : 0.0f;
  }
  float acc[GM];
  UNROLL for (int g = 0; g < GM; g++) acc[g] = 0;
  const int token = t & 63, quarter = t >> 6;
  float next[8];
  auto load_tile = [&](int d0) {
    UNROLL for (int j = 0; j < 8; j++) {
      const int i = t + 256 * j, r = gpu_min_i(i / kTileDims, n - 1), d = i % kTileDims;
      next[j] = kv_load(page, k_at + (u64)(r * hd + d0 + d), Type);
    }
  };
  if (staged) {
#if GPU_TIER >= 80
    gpu_wait_copies();
#endif
    gpu_sync();
    const int row = gpu_min_i(token, n - 1) * pitch;
    UNROLL2 for (int d0 = quarter * 8; d0 < hd; d0 += kTileDims) {
      float k[8];
      kv_load8(k, k_staged, row + d0, Type);
      UNROLL for (int d = 0; d < 8; d++) {
        const float* qd = q + (d0 + d) * GM;
        UNROLL for (int g = 0; g < GM; g++) acc[g] = gpu_fma(k[d], qd[g], acc[g]);
      }
    }
  } else {
    load_tile(0);
    NO_UNROLL for (int d0 = 0; d0 < hd; d0 += kTileDims) {
      gpu_sync();
      UNROLL for (int j = 0; j < 8; j++) {
        const int i = t + 256 * j;
        tile[i / kTileDims * kTilePitch + i % kTileDims] = next[j];
      }
      gpu_sync();
      if (d0 + kTileDims < hd) load_tile(d0 + kTileDims);
      UNROLL for (int d = 0; d < 8; d++) {
        const float k = tile[token * kTilePitch + quarter * 8 + d];
        const float* qd = q + (d0 + quarter * 8 + d) * GM;
        UNROLL for (int g = 0; g < GM; g++) acc[g] = gpu_fma(k, qd[g], acc[g]);
      }
    }
  }
  UNROLL for (int g = 0; g < GM; g++) scores[(quarter * 64 + token) * GM + g] = acc[g];
  gpu_sync();
  float* probability = scores + 4 * 64 * GM;
  if (t < 64) {
    UNROLL for (int g = 0; g < GM; g++) {
      const float* c = scores + t * GM + g;
      probability[t * GM + g] = (c[0] + c[64 * GM]) + (c[128 * GM] + c[192 * GM]);
    }
  }
  gpu_sync();
  const u64 stat_at = ((u64)bid_z() * (u64)p.num_q_heads + (u64)head0) * (u64)p.splits + (u64)split;
  // Softmax over at most 64 tokens: eight threads a head reduce eight tokens each, then everyone joins the eight.
  SHARED float part[2][8 * GM];
  if (t < 8 * GM) {
    const int g = t % GM, first = t / GM * 8;
    float m = -3.0e38f;
    for (int i = first; i < first + 8 && i < n; i++) m = gpu_max(m, probability[i * GM + g]);
    part[0][t] = m;
  }
  gpu_sync();
  float maximum[GM];
  UNROLL for (int g = 0; g < GM; g++) {
    maximum[g] = part[0][g];
    UNROLL for (int i = 1; i < 8; i++) maximum[g] = gpu_max(maximum[g], part[0][i * GM + g]);
  }
  if (t < 64) {
    UNROLL for (int g = 0; g < GM; g++) {
      float* c = probability + t * GM + g;
      *c = t < n ? gpu_exp(*c - maximum[g]) : 0.0f;
    }
  }
  gpu_sync();
  if (t < 8 * GM) {
    const int g = t % GM, first = t / GM * 8;
    float sum = 0;
    UNROLL for (int i = 0; i < 8; i++) sum += probability[(first + i) * GM + g];
    part[1][t] = sum;
  }
  gpu_sync();
  if (t < heads) {
    float sum = 0, m = -3.0e38f;
    UNROLL for (int i = 0; i < 8; i++) sum += part[1][i * GM + t];
    UNROLL for (int g = 0; g < GM; g++) m = g == t ? maximum[g] : m;
    p.partial_stat[2 * (stat_at + (u64)t * (u64)p.splits)] = m;
    p.partial_stat[2 * (stat_at + (u64)t * (u64)p.splits) + 1] = sum;
  }
  // Output: thread = (share of the tokens, dimension).
  const int shares = hd < 256 ? 256 / hd : 1;
  for (int d0 = 0; d0 < hd; d0 += 256) {
    const int d = d0 + (hd < 256 ? t % hd : t), share = hd < 256 ? t / hd : 0;
    UNROLL for (int g = 0; g < GM; g++) acc[g] = 0;
    if (share < shares && d < hd) {
      NO_UNROLL for (int i0 = share; i0 < n; i0 += 16 * shares) {  // probabilities past n are zero, addresses are clamped
        float v[16];
        UNROLL for (int i = 0; i < 16; i++) {
          const int from = gpu_min_i(i0 + i * shares, n - 1);
          v[i] = staged ? kv_load(v_staged, (u64)(u32)(from * pitch + d), Type) : kv_load(page, v_at + (u64)(u32)(from * hd + d), Type);
        }
        UNROLL for (int i = 0; i < 16; i++) {
          const float* c = probability + gpu_min_i(i0 + i * shares, 63) * GM;
          const bool inside = i0 + i * shares < n;
          UNROLL for (int g = 0; g < GM; g++) acc[g] = gpu_fma(inside ? c[g] : 0.0f, v[i], acc[g]);
        }
      }
    }
    if (shares > 1) {  // hd <= 128: the shares meet in the q and score area, [share][g][d]
      gpu_sync();      // uniform: shares is the same for the whole block
      float* meet = scores;
      if (share > 0 && share < shares) {
        UNROLL for (int g = 0; g < GM; g++) meet[((share - 1) * GM + g) * hd + d] = acc[g];
      }
      gpu_sync();
      if (share == 0) {
        for (int o = 1; o < shares; o++) {
          UNROLL for (int g = 0; g < GM; g++) acc[g] += meet[((o - 1) * GM + g) * hd + d];
        }
      }
    }
    if (share == 0 && d < hd) {
      UNROLL for (int g = 0; g < GM; g++) {
        if (g < heads) p.partial[(stat_at + (u64)g * (u64)p.splits) * (u64)hd + (u64)d] = acc[g];
      }
    }
  }
}
