// Gated DeltaNet kernels, written once for all tiers (gdn_kernels_<tier>.cc include this after simd_math.h).
#pragma once

#include "backend/cpu/kernels/gdn_mixer/gdn_kernels.h"

namespace heirloom::cpu::HEIRLOOM_ISA {
namespace {

HEIRLOOM_INLINE void prefetch(const float* p) { __builtin_prefetch(p); }

HEIRLOOM_INLINE float square_sum(const float* x, int n) {
  Vec a = zero(), b = zero();
  int i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec u = load(x + i), v = load(x + i + kLanes);
    a = madd(u, u, a);
    b = madd(v, v, b);
  }
  for (; i < n; i += kLanes) {
    const Vec u = n - i >= kLanes ? load(x + i) : load_n(x + i, n - i);
    a = madd(u, u, a);
  }
  return sum(add(a, b));
}

/// V vectors of columns (the last one n lanes wide if kPartial) over all tokens of the tile. `next`: the state that is read
/// afterwards, in rows as far apart: the last update asks for it, because lines a row apart are no stream that a CPU foresees
/// (0.8B decode, all of the mixer: ssse3 2.8 -> 2.3 ms a token, avx2 2.0 -> 1.75).
template <int V, bool kPartial>
HEIRLOOM_INLINE void delta_columns(const GdnTile& tile, float* s, float* v, int n, const float* next) {
  const auto get = [n](const float* p) { return kPartial ? load_n(p, n) : load(p); };
  const auto put = [n](float* p, Vec x) { kPartial ? store_n(p, x, n) : store(p, x); };
  const std::ptrdiff_t stride = tile.state_stride;
  const int rows = tile.head_k_dim;
  const float *q = tile.q, *k = tile.k;
  constexpr bool kAsk = V * kLanes <= 32;  // two strips of 64 columns and 128 rows do not fit the first cache
  Vec kv[V], qv[V], delta[V];

  for (int c = 0; c < V; ++c) kv[c] = qv[c] = zero();
  for (int i = 0; i < rows; ++i) {
    const Vec ki = set(k[i]), qi = set(q[i]);
    for (int c = 0; c < V; ++c) {
      const Vec x = get(s + i * stride + c * kLanes);
      kv[c] = madd(x, ki, kv[c]);
      qv[c] = madd(x, qi, qv[c]);
    }
  }
  for (int t = 0; t < tile.tokens; ++t) {
    const Vec decay = set(tile.decay[t * tile.gate_stride]), beta = set(tile.beta[t * tile.gate_stride]);
    const Vec dot = set(tile.qk_dot[t * tile.dot_stride]), scale = set(tile.scale);
    for (int c = 0; c < V; ++c) {
      float* at = v + t * tile.v_stride + c * kLanes;
      delta[c] = mul(beta, nmadd(decay, kv[c], get(at)));
      put(at, mul(madd(dot, delta[c], mul(decay, qv[c])), scale));
    }
    if (t + 1 == tile.tokens) {
      for (int i = 0; i < rows; ++i) {
        const Vec ki = set(k[i]);
        if constexpr (kAsk) {
          for (int c = 0; c < V * kLanes; c += 16) prefetch(next + i * stride + c);
        }
        for (int c = 0; c < V; ++c) {
          float* at = s + i * stride + c * kLanes;
          put(at, madd(ki, delta[c], mul(decay, get(at))));
        }
      }
      return;
    }
    const float *next_q = q + tile.qk_stride, *next_k = k + tile.qk_stride;
    for (int c = 0; c < V; ++c) kv[c] = qv[c] = zero();
    for (int i = 0; i < rows; ++i) {
      const Vec ki = set(k[i]), next_ki = set(next_k[i]), next_qi = set(next_q[i]);
      for (int c = 0; c < V; ++c) {
        float* at = s + i * stride + c * kLanes;
        const Vec x = madd(ki, delta[c], mul(decay, get(at)));
        put(at, x);
        kv[c] = madd(x, next_ki, kv[c]);
        qv[c] = madd(x, next_qi, qv[c]);
      }
    }
    q = next_q;
    k = next_k;
  }
}

}  // namespace

void gdn_conv(const float* w, const float* state, const float* x, std::ptrdiff_t stride, int n, int tokens, float* out,
              std::ptrdiff_t out_stride) noexcept {
  if (tokens == 1 && n % kLanes == 0) {  // decode: each tap is used once
    for (int c = 0; c < n; c += kLanes) {
      Vec tap[4];
      load_taps(w + c * 4, tap);
      Vec acc = mul(tap[0], load(state + stride + c));
      acc = madd(tap[1], load(state + 2 * stride + c), acc);
      acc = madd(tap[2], load(state + 3 * stride + c), acc);
      store(out + c, silu(madd(tap[3], load(x + c), acc)));
    }
    return;
  }
  // Taps are transposed once for a strip of channels; the strip then goes through all tokens.
  constexpr int kStrip = 8 * kLanes;
  float taps[4][kStrip];
  for (int first = 0; first < n; first += kStrip) {
    const int width = n - first < kStrip ? n - first : kStrip;
    int c = 0;
    for (; c + kLanes <= width; c += kLanes) {
      Vec tap[4];
      load_taps(w + (first + c) * 4, tap);
      for (int j = 0; j < 4; ++j) store(taps[j] + c, tap[j]);
    }
    for (; c < width; ++c) {
      for (int j = 0; j < 4; ++j) taps[j][c] = w[(first + c) * 4 + j];
    }
    for (int t = 0; t < tokens; ++t) {
      const float* in[4];  // inputs of tokens t - 3 .. t; those before the call are the state's newest rows
      for (int j = 0; j < 4; ++j) in[j] = (t - 3 + j < 0 ? state + (t + 1 + j) * stride : x + (t - 3 + j) * stride) + first;
      float* to = out + t * out_stride + first;
      for (c = 0; c + kLanes <= width; c += kLanes) {
        Vec acc = mul(load(taps[0] + c), load(in[0] + c));
        for (int j = 1; j < 4; ++j) acc = madd(load(taps[j] + c), load(in[j] + c), acc);
        store(to + c, silu(acc));
      }
      if (c < width) {
        const int left = width - c;
        Vec acc = mul(load_n(taps[0] + c, left), load_n(in[0] + c, left));
        for (int j = 1; j < 4; ++j) acc = madd(load_n(taps[j] + c, left), load_n(in[j] + c, left), acc);
        store_n(to + c, silu(acc), left);
      }
    }
  }
}

void gdn_l2_norm(float* x, int n) noexcept {
  const Vec scale = set(1.0f / __builtin_sqrtf(square_sum(x, n) + 1e-6f));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, mul(load(x + i), scale));
  if (i < n) store_n(x + i, mul(load_n(x + i, n - i), scale), n - i);
}

float gdn_dot(const float* a, const float* b, int n) noexcept {
  Vec acc = zero();
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) acc = madd(load(a + i), load(b + i), acc);
  if (i < n) acc = madd(load_n(a + i, n - i), load_n(b + i, n - i), acc);
  return sum(acc);
}

void gdn_gates(const float* a, const float* b, const float* dt_bias, const float* neg_exp_a, int n, float* g, float* decay,
               float* beta) noexcept {
  for (int i = 0; i < n; i += kLanes) {
    const int left = n - i < kLanes ? n - i : kLanes;
    const Vec step = softplus(add(load_n(a + i, left), load_n(dt_bias + i, left)));
    const Vec log_decay = mul(load_n(neg_exp_a + i, left), step);
    store_n(g + i, log_decay, left);
    store_n(decay + i, exp(log_decay), left);
    store_n(beta + i, sigmoid(load_n(b + i, left)), left);
  }
}

void gdn_delta(const GdnTile& tile) noexcept {
  // Four vectors of columns are eight chains of additions, what two FMA units of latency 4 need, and fill 16 registers.
  const auto after = [&](int c) { return tile.state + (c < tile.columns ? c : 0); };  // at the end something that is here already
  int c = 0;
  for (; c + 4 * kLanes <= tile.columns; c += 4 * kLanes) {
    delta_columns<4, false>(tile, tile.state + c, tile.v + c, 0, after(c + 4 * kLanes));
  }
  for (; c + 2 * kLanes <= tile.columns; c += 2 * kLanes) {
    delta_columns<2, false>(tile, tile.state + c, tile.v + c, 0, after(c + 2 * kLanes));
  }
  for (; c + kLanes <= tile.columns; c += kLanes) delta_columns<1, false>(tile, tile.state + c, tile.v + c, 0, after(c + kLanes));
  if (c < tile.columns) delta_columns<1, true>(tile, tile.state + c, tile.v + c, tile.columns - c, tile.state);
}

void gdn_gated_norm(const float* y, const float* z, const float* weight, float eps, int n, float* out) noexcept {
  const Vec scale = set(1.0f / __builtin_sqrtf(square_sum(y, n) / static_cast<float>(n) + eps));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, mul(mul(mul(load(y + i), scale), load(weight + i)), silu(load(z + i))));
  }
  if (i < n) {
    const int left = n - i;
    store_n(out + i, mul(mul(mul(load_n(y + i, left), scale), load_n(weight + i, left)), silu(load_n(z + i, left))), left);
  }
}

}  // namespace heirloom::cpu::HEIRLOOM_ISA
