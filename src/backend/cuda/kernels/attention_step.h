// Softmax attention of one token, up to the pages' parts: q and k norm, rotary embedding, K and V written into the sequence's page, and
// the softmax inside each page (attention_out.h and attention_combine join the pages). One launch where attention_prepare and
// attention_decode are two. A block takes a page of 64 tokens and up to 4 query heads of one KV head, and prepares its heads itself; the
// block of the last page also makes the new key and value. What earlier steps wrote (the page, positions) is copied to shared memory
// before the inputs are there, while the projections are still computed: a step begins with a copy from the host, so nothing
// of earlier steps runs any more.
// Each of the 8 warps takes 8 tokens with a softmax of its own; the warps' parts are joined in order at the end, so that three barriers do.
//   grid (pages, nkv * ceil(group / 4)), 256 threads; blocks past the position leave at once. Shared memory: AttentionStepShared.
#pragma once

#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/kv_cache.h"
#include "backend/cuda/kernels/warp_sums.h"

constexpr int kStepHeads = 4, kStepWarps = 8, kStepTokens = kPageTokens / kStepWarps;
constexpr float kNoScore = -3.0e38f;

template <int D>
struct AttentionStepShared {
  Mailbox *k_box, *v_box;
  F4* q;               // [D / 64][8][8]: dimension 64 i + 8 l + d of the 4 heads at (i * 8 + d) * 8 + l
  float* probability;  // [64][4]
  float* maximum;      // [8 warps][4]
  float* total;        // [8 warps][4]
  u8 *k, *v;           // [64][D] of 16 bits
  float* parts;        // [8 warps][4][D], where K was

  DEVICE_M explicit AttentionStepShared(u8* memory) {
    k = memory;
    v = k + 64 * D * 2;
    parts = (float*)memory;
    q = (F4*)(v + 64 * D * 2);
    probability = (float*)(q + D);
    maximum = probability + 64 * kStepHeads;
    total = maximum + kStepWarps * kStepHeads;
    k_box = (Mailbox*)(total + kStepWarps * kStepHeads);
    v_box = k_box + 1;
  }
};

/// The N consecutive floats or 16-bit values of a lane.
template <int N>
DEVICE void load_floats(float (&v)[N], const float* from) {
  if constexpr (N % 4 == 0) {
    UNROLL for (int i = 0; i < N / 4; i++) {
      const F4 quad = ((const F4*)from)[i];
      v[4 * i] = quad.x;
      v[4 * i + 1] = quad.y;
      v[4 * i + 2] = quad.z;
      v[4 * i + 3] = quad.w;
    }
  } else {
    UNROLL for (int i = 0; i < N; i++) v[i] = from[i];
  }
}
template <int N, int Type>
DEVICE void load_values(float (&v)[N], const u8* from) {
  if constexpr (N == 8) {
    kv_load8(v, from, 0, Type);
  } else {
    UNROLL for (int i = 0; i < N; i++) v[i] = kv_load(from, (u64)(u32)i, Type);
  }
}

template <int D, int Type>
DEVICE void attention_step(const AttentionStepArgs& p, u8* memory) {
  constexpr int N = D / 32;  // dimensions of a lane
  const int t = tid_x(), lane = t & 31, warp = t >> 5, page_at = bid_x();
  const int nh = p.num_q_heads, nkv = p.num_kv_heads, group = nh / nkv, blocks = (group + kStepHeads - 1) / kStepHeads;
  const int kv_head = bid_y() / blocks, part = bid_y() % blocks, head0 = kv_head * group + part * kStepHeads;
  const int heads = gpu_min_i(kStepHeads, (kv_head + 1) * group - head0);
  const AttentionStepShared<D> shared(memory);
  const int position = p.sequence->past_tokens, n = gpu_min_i(64, position + 1 - page_at * kPageTokens);  // tokens of this page
  if (n <= 0) return;  // the whole block
  const bool last = n == position + 1 - page_at * kPageTokens;
  const int old = last ? n - 1 : n;
  u8* page = p.sequence->pages[page_at];
  const u64 k_at = kv_offset(p.layer, 0, kv_head, nkv, D) * 2, v_at = kv_offset(p.layer, 1, kv_head, nkv, D) * 2;  // bytes
  if (t == 0) {
    gpu_expect(shared.k_box, old * D * 2);
    gpu_expect(shared.v_box, old * D * 2);
    if (old > 0) {
      gpu_send_global(shared.k, page + k_at, old * D * 2, shared.k_box);
      gpu_send_global(shared.v, page + v_at, old * D * 2, shared.v_box);
    }
  }
  // Warps 0 to 3 prepare a query head each, warp 4 the new key, warp 5 the new value.
  const int half = p.rotary_dim / 2, apart = half / N, dim = lane * N;
  const bool is_k = warp == kStepHeads, is_v = warp == kStepHeads + 1, turns = dim < p.rotary_dim;
  float weight[N], cosine[N], sine[N];
  load_floats(weight, (is_k ? p.k_weight : p.q_weight) + dim);
  UNROLL for (int i = 0; i < N; i++) {
    const int angle = turns ? (dim + i < half ? dim + i : dim + i - half) : 0;
    cosine[i] = p.rope_cos[angle];
    sine[i] = p.rope_sin[angle];
  }
  gpu_sync();  // the mailboxes

  gpu_wait_inputs();
  if (gpu_warp_has(warp < kStepHeads + 2)) {
    const int h = head0 + gpu_min_i(warp, heads - 1);
    float x[N];
    load_floats(x, (is_v ? p.v + kv_head * D : is_k ? p.k + kv_head * D : p.q_gate + h * 2 * D) + dim);
    float squares = 0;
    UNROLL for (int i = 0; i < N; i++) squares = gpu_fma(x[i], x[i], squares);
    const float scale = gpu_rsqrt_approx(warp_total(squares) / (float)D + p.eps);
    float turned[N];
    UNROLL for (int i = 0; i < N; i++) turned[i] = x[i] * scale * weight[i];
    UNROLL for (int i = 0; i < N; i++) {
      const float other = gpu_shuffle_xor(turned[i], apart);
      const float with_sine = dim + i < half ? -other : other;
      if (turns) turned[i] = gpu_fma(with_sine, sine[i], turned[i] * cosine[i]);
    }
    if (warp < kStepHeads) {
      UNROLL for (int i = 0; i < N; i++) {
        const int chunk = (dim + i) / 8, d = (dim + i) % 8;
        ((float*)(shared.q + ((chunk >> 3) * 8 + d) * 8 + (chunk & 7)))[warp] = warp < heads ? turned[i] * p.scale : 0.0f;
      }
    } else if (warp < kStepHeads + 2 && last) {
      u8* row = (is_v ? shared.v : shared.k) + ((n - 1) * D + dim) * 2;
      u8* to = page + (is_v ? v_at : k_at) + (u64)(u32)(((n - 1) * D + dim) * 2);
      UNROLL for (int i = 0; i < N; i++) kv_store(row, (u64)(u32)i, Type, is_v ? x[i] : turned[i]);
      if (part == 0) {
        UNROLL for (int i = 0; i < N; i++) kv_store(to, (u64)(u32)i, Type, is_v ? x[i] : turned[i]);
      }
    }
  }
  gpu_let_next_start();
  gpu_sync();
  gpu_receive(shared.k_box);

  // Scores: 8 lanes share two tokens, a lane takes every 8th unit of 16 bytes.
  const int first = warp * kStepTokens, l = lane & 7, pair = first + 2 * (lane >> 3);
  const u8* row0 = shared.k + gpu_min_i(pair, n - 1) * D * 2;
  const u8* row1 = shared.k + gpu_min_i(pair + 1, n - 1) * D * 2;
  float s0[kStepHeads], s1[kStepHeads];
  UNROLL for (int g = 0; g < kStepHeads; g++) s0[g] = s1[g] = 0;
  const bool works = gpu_warp_has(first < n);
  if (works) {
    UNROLL for (int i = 0; i < D / 64; i++) {
      float k0[8], k1[8];
      kv_load8(k0, row0, (i * 8 + l) * 8, Type);
      kv_load8(k1, row1, (i * 8 + l) * 8, Type);
      UNROLL for (int d = 0; d < 8; d++) {
        const F4 q = shared.q[(i * 8 + d) * 8 + l];
        s0[0] = gpu_fma(k0[d], q.x, s0[0]);
        s0[1] = gpu_fma(k0[d], q.y, s0[1]);
        s0[2] = gpu_fma(k0[d], q.z, s0[2]);
        s0[3] = gpu_fma(k0[d], q.w, s0[3]);
        s1[0] = gpu_fma(k1[d], q.x, s1[0]);
        s1[1] = gpu_fma(k1[d], q.y, s1[1]);
        s1[2] = gpu_fma(k1[d], q.z, s1[2]);
        s1[3] = gpu_fma(k1[d], q.w, s1[3]);
      }
    }
    // Lane l of the 8 gets the sum of token l & 1 and head l >> 1.
    const bool odd = l & 1, second = l & 2, upper = l & 4;
    float v[kStepHeads];
    UNROLL for (int g = 0; g < kStepHeads; g++) v[g] = (odd ? s1[g] : s0[g]) + gpu_shuffle_xor(odd ? s0[g] : s1[g], 1);
    const float a = (second ? v[1] : v[0]) + gpu_shuffle_xor(second ? v[0] : v[1], 2);
    const float b = (second ? v[3] : v[2]) + gpu_shuffle_xor(second ? v[2] : v[3], 2);
    const float sum = (upper ? b : a) + gpu_shuffle_xor(upper ? a : b, 4);
    const int token = pair + (l & 1), head = l >> 1;
    const float score = token < n ? sum : kNoScore;
    float largest = gpu_max(score, gpu_shuffle_xor(score, 1));
    largest = gpu_max(largest, gpu_shuffle_xor(largest, 8));
    largest = gpu_max(largest, gpu_shuffle_xor(largest, 16));
    const float probability = token < n ? gpu_exp(score - largest) : 0.0f;
    float total = probability + gpu_shuffle_xor(probability, 1);
    total += gpu_shuffle_xor(total, 8);
    total += gpu_shuffle_xor(total, 16);
    shared.probability[token * kStepHeads + head] = probability;
    if ((lane & ~6) == 0) {
      shared.maximum[warp * kStepHeads + head] = largest;
      shared.total[warp * kStepHeads + head] = total;
    }
  }
  gpu_sync();
  gpu_receive(shared.v_box);

  // Outputs of the warp's tokens: a lane takes N dimensions of all heads.
  if (works && first < n) {
    float out[kStepHeads][N];
    UNROLL for (int g = 0; g < kStepHeads; g++) {
      UNROLL for (int i = 0; i < N; i++) out[g][i] = 0;
    }
    UNROLL for (int j = 0; j < kStepTokens; j++) {
      const int token = gpu_min_i(first + j, n - 1);  // probabilities past n are zero
      float v[N];
      load_values<N, Type>(v, shared.v + (token * D + dim) * 2);
      const F4 weights = ((const F4*)shared.probability)[first + j];
      UNROLL for (int i = 0; i < N; i++) {
        out[0][i] = gpu_fma(weights.x, v[i], out[0][i]);
        out[1][i] = gpu_fma(weights.y, v[i], out[1][i]);
        out[2][i] = gpu_fma(weights.z, v[i], out[2][i]);
        out[3][i] = gpu_fma(weights.w, v[i], out[3][i]);
      }
    }
    UNROLL for (int g = 0; g < kStepHeads; g++) {
      float* to = shared.parts + (warp * kStepHeads + g) * D + dim;
      if constexpr (N % 4 == 0) {
        UNROLL for (int i = 0; i < N; i += 4) {
          F4* quad = (F4*)(to + i);
          quad->x = out[g][i];
          quad->y = out[g][i + 1];
          quad->z = out[g][i + 2];
          quad->w = out[g][i + 3];
        }
      } else {
        UNROLL for (int i = 0; i < N; i++) to[i] = out[g][i];
      }
    }
  }
  gpu_sync();
  const int g = t / (D / 4), quad = t % (D / 4), warps = (n + kStepTokens - 1) / kStepTokens;
  if (g >= heads) return;
  float largest = kNoScore, total = 0;
  UNROLL for (int w = 0; w < kStepWarps; w++) {
    if (w < warps) largest = gpu_max(largest, shared.maximum[w * kStepHeads + g]);
  }
  F4 sum = F4{0, 0, 0, 0};
  UNROLL for (int w = 0; w < kStepWarps; w++) {
    if (w >= warps) continue;
    const float factor = gpu_exp(shared.maximum[w * kStepHeads + g] - largest);
    const F4 from = ((const F4*)(shared.parts + (w * kStepHeads + g) * D))[quad];
    total = gpu_fma(factor, shared.total[w * kStepHeads + g], total);
    sum.x = gpu_fma(factor, from.x, sum.x);
    sum.y = gpu_fma(factor, from.y, sum.y);
    sum.z = gpu_fma(factor, from.z, sum.z);
    sum.w = gpu_fma(factor, from.w, sum.w);
  }
  const u64 at = (u64)(u32)(head0 + g) * (u64)(u32)p.splits + (u64)(u32)page_at;
  F4* to = (F4*)(p.partial + at * D) + quad;
  to->x = sum.x;
  to->y = sum.y;
  to->z = sum.z;
  to->w = sum.w;
  if (quad == 0) {
    p.partial_stat[2 * at] = largest;
    p.partial_stat[2 * at + 1] = total;
  }
}
