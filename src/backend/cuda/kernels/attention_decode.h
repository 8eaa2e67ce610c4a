// Softmax attention of single rows over the paged cache, split over pages: a block takes one row, one KV head with up to GM of
// its query heads, and one page of 64 tokens, and leaves (maximum, sum, unnormalised output); attention_combine joins them. The
// partition is fixed by the page, so a row's result depends neither on the batch nor on the context capacity of the launch.
//   grid (pages, nkv * ceil(group / GM), rows), 256 threads; blocks past the row's position leave at once
// K passes through shared memory in tiles [64][32 dims] (pitch 33: no bank conflicts), the next tile in flight, each thread does
// (token, a quarter of a tile); V is read straight (threads own dimensions, loads are coalesced, 16 in flight). Shared: 8.4 KB tile
// + 4 GM (hd + 64 * 5) bytes.
// From compute capability 8.0 on, where the host found room (`staged`), the page's K and V rows come into shared memory at once:
// with few blocks a step waits for loads, and this way for one round of them.
// attention_combine: one block of 256 threads a (head, row); 256 / (hd / 4) groups share the pages. It also applies sigmoid(gate).
#pragma once

#include "backend/cuda/kernels/async_copy.h"
#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/kv_cache.h"

constexpr int kTilePitch = 33;
constexpr int kTileDims = 32;

#if GPU_TIER >= 80
/// Count (4 or 8) neighbouring values of a cached row in shared memory, in one access where they are 16 bits.
template <int Type, int Count>
DEVICE void staged_values(float (&v)[Count], const u8* from) {
  if constexpr (Type == kKvF32) {
    UNROLL for (int i = 0; i < Count; i += 4) {
      const F4 w = *(const F4*)(from + 4 * i);
      v[i] = w.x;
      v[i + 1] = w.y;
      v[i + 2] = w.z;
      v[i + 3] = w.w;
    }
  } else {
    u32 words[Count / 2];
    if constexpr (Count == 8) {
      const U4 w = *(const U4*)from;
      words[0] = w.x;
      words[1] = w.y;
      words[2] = w.z;
      words[3] = w.w;
    } else {
      const U2 w = *(const U2*)from;
      words[0] = w.x;
      words[1] = w.y;
    }
    UNROLL for (int i = 0; i < Count / 2; i++) {
      const u16 low = (u16)words[i], high = (u16)(words[i] >> 16);
      v[2 * i] = Type == kKvF16 ? half_to_f32(low) : bf16_to_f32(low);
      v[2 * i + 1] = Type == kKvF16 ? half_to_f32(high) : bf16_to_f32(high);
    }
  }
}

// Dynamic shared memory: probabilities [64][GM], q [hd][GM], partial scores [8 warps][GM][64], K rows, and from p.staged on V rows.
// The shares' outputs [share][GM][hd] take the place of q, scores and K. Rows lie 16 bytes further apart than they are long, an odd
// number of 16 bytes: neighbouring tokens meet in no bank.
template <int GM, int Type>
DEVICE void attention_decode_staged(const AttentionDecodeArgs& p, const u8* page, int n, int kv_head, int head0, int heads, int row,
                                    u64 stat_at) {
  DYN_SHARED(u8, dynamic);
  constexpr int kBytes = Type == kKvF32 ? 4 : 2;
  const int t = tid_x(), hd = p.head_dim, warp = t >> 5, lane = t & 31, quads = hd / 4, pitch = hd * kBytes + 16;
  float* probability = (float*)dynamic;
  float* q = probability + 64 * GM;
  float* scores = q + hd * GM;
  u8* keys = (u8*)(scores + 8 * 64 * GM);
  u8* values = dynamic + p.staged;
  const u8* from_k = page + kv_offset(p.layer, 0, kv_head, p.num_kv_heads, hd) * kBytes;
  const u8* from_v = page + kv_offset(p.layer, 1, kv_head, p.num_kv_heads, hd) * kBytes;
  const int pieces = hd * kBytes / 16, rows_at_once = 256 / pieces, piece = t % pieces * 16;
  if (t / pieces < rows_at_once) {
    for (int r = t / pieces; r < n; r += rows_at_once) {
      gpu_copy16_async(keys + r * pitch + piece, from_k + r * hd * kBytes + piece);
      gpu_copy16_async(values + r * pitch + piece, from_v + r * hd * kBytes + piece);
    }
  }
  UNROLL4 for (int i = t; i < GM * quads; i += 256) {
    const int g = i / quads, quad = i % quads;
    F4 v = F4{0, 0, 0, 0};
    if (g < heads) v = *((const F4*)(p.q + ((u64)row * (u64)p.num_q_heads + (u64)(head0 + g)) * (u64)hd) + quad);
    float* to = q + 4 * quad * GM + g;
    to[0] = v.x * p.scale;
    to[GM] = v.y * p.scale;
    to[2 * GM] = v.z * p.scale;
    to[3 * GM] = v.w * p.scale;
  }
  gpu_wait_copies();
  gpu_sync();
  // Scores: a warp takes every eighth group of 8 dimensions, a lane two tokens. Tokens past n repeat the last one.
  float sum[2][GM];
  UNROLL for (int g = 0; g < GM; g++) sum[0][g] = sum[1][g] = 0;
  const u8* first = keys + gpu_min_i(lane, n - 1) * pitch;
  const u8* second = keys + gpu_min_i(lane + 32, n - 1) * pitch;
  NO_UNROLL for (int d0 = 8 * warp; d0 < hd; d0 += 64) {
    float k[2][8];
    staged_values<Type>(k[0], first + d0 * kBytes);
    staged_values<Type>(k[1], second + d0 * kBytes);
    UNROLL for (int d = 0; d < 8; d++) {
      UNROLL for (int g = 0; g < GM; g += 4) {
        const F4 w = *(const F4*)(q + (d0 + d) * GM + g);
        UNROLL for (int i = 0; i < 2; i++) {
          sum[i][g] = gpu_fma(k[i][d], w.x, sum[i][g]);
          sum[i][g + 1] = gpu_fma(k[i][d], w.y, sum[i][g + 1]);
          sum[i][g + 2] = gpu_fma(k[i][d], w.z, sum[i][g + 2]);
          sum[i][g + 3] = gpu_fma(k[i][d], w.w, sum[i][g + 3]);
        }
      }
    }
  }
  UNROLL for (int g = 0; g < GM; g++) {
    scores[(warp * GM + g) * 64 + lane] = sum[0][g];
    scores[(warp * GM + g) * 64 + lane + 32] = sum[1][g];
  }
  gpu_sync();
  // Softmax: a warp a head. Where warps outnumber heads the rest repeat the work, since all must reach the shuffles.
  const int head = warp % GM;
  float score[2] = {0, 0};
  UNROLL for (int i = 0; i < 8; i++) {
    score[0] += scores[(i * GM + head) * 64 + lane];
    score[1] += scores[(i * GM + head) * 64 + lane + 32];
  }
  float maximum = gpu_max(lane < n ? score[0] : -3.0e38f, lane + 32 < n ? score[1] : -3.0e38f);
  UNROLL for (int mask = 16; mask > 0; mask >>= 1) maximum = gpu_max(maximum, gpu_shuffle_xor(maximum, mask));
  score[0] = lane < n ? gpu_exp(score[0] - maximum) : 0.0f;
  score[1] = lane + 32 < n ? gpu_exp(score[1] - maximum) : 0.0f;
  float total = score[0] + score[1];
  UNROLL for (int mask = 16; mask > 0; mask >>= 1) total += gpu_shuffle_xor(total, mask);
  if (warp < GM) {
    probability[lane * GM + head] = score[0];
    probability[(lane + 32) * GM + head] = score[1];
  }
  if (lane == 0 && warp < heads) {
    p.partial_stat[2 * (stat_at + (u64)warp * (u64)p.splits)] = maximum;
    p.partial_stat[2 * (stat_at + (u64)warp * (u64)p.splits) + 1] = total;
  }
  gpu_sync();
  // Output: thread = (share of the tokens, four dimensions); then the shares are added in order.
  const int shares = 256 / quads, share = t / quads, quad = t % quads;
  float* meet = q;
  if (share < shares) {
    float acc[GM][4];
    UNROLL for (int g = 0; g < GM; g++) acc[g][0] = acc[g][1] = acc[g][2] = acc[g][3] = 0;
    UNROLL4 for (int i = share; i < n; i += shares) {
      float v[4];
      staged_values<Type>(v, values + i * pitch + 4 * quad * kBytes);
      UNROLL for (int g = 0; g < GM; g += 4) {
        const F4 w = *(const F4*)(probability + i * GM + g);
        UNROLL for (int d = 0; d < 4; d++) {
          acc[g][d] = gpu_fma(w.x, v[d], acc[g][d]);
          acc[g + 1][d] = gpu_fma(w.y, v[d], acc[g + 1][d]);
          acc[g + 2][d] = gpu_fma(w.z, v[d], acc[g + 2][d]);
          acc[g + 3][d] = gpu_fma(w.w, v[d], acc[g + 3][d]);
        }
      }
    }
    UNROLL for (int g = 0; g < GM; g++) {
      F4* to = (F4*)(meet + (share * GM + g) * hd) + quad;
      to->x = acc[g][0];
      to->y = acc[g][1];
      to->z = acc[g][2];
      to->w = acc[g][3];
    }
  }
  gpu_sync();
  for (int i = t; i < heads * quads; i += 256) {
    const int g = i / quads, at = i % quads;
    F4 v = F4{0, 0, 0, 0};
    for (int o = 0; o < shares; o++) {
      const F4 part = *((const F4*)(meet + (o * GM + g) * hd) + at);
      v.x += part.x;
      v.y += part.y;
      v.z += part.z;
      v.w += part.w;
    }
    F4* to = (F4*)(p.partial + (stat_at + (u64)g * (u64)p.splits) * (u64)hd) + at;
    to->x = v.x;
    to->y = v.y;
    to->z = v.z;
    to->w = v.w;
  }
}
#endif

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
  const u8* page = s->pages[split];
  const u64 stat_at = ((u64)bid_z() * (u64)p.num_q_heads + (u64)head0) * (u64)p.splits + (u64)split;
#if GPU_TIER >= 80
  if (p.staged) {  // the same for the whole launch
    attention_decode_staged<GM, Type>(p, page, n, kv_head, head0, heads, row, stat_at);
    return;
  }
#endif
  const u64 k_at = kv_offset(p.layer, 0, kv_head, p.num_kv_heads, hd), v_at = kv_offset(p.layer, 1, kv_head, p.num_kv_heads, hd);
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
        UNROLL for (int i = 0; i < 16; i++) v[i] = kv_load(page, v_at + (u64)(gpu_min_i(i0 + i * shares, n - 1) * hd + d), Type);
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
