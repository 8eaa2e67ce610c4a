// Softmax attention kernels, written once for all tiers (attention_kernels_<tier>.cc include this after simd_math.h).
#pragma once

#include "backend/cpu/kernels/attention/attention_kernels.h"

namespace heirloom::cpu::HEIRLOOM_ISA {
namespace {

struct F32 {
  using Element = float;
  static HEIRLOOM_INLINE Vec get(const float* p) { return load(p); }
};
struct F16 {
  using Element = std::uint16_t;
  static HEIRLOOM_INLINE Vec get(const std::uint16_t* p) { return load_f16(p); }
};
struct Bf16 {
  using Element = std::uint16_t;
  static HEIRLOOM_INLINE Vec get(const std::uint16_t* p) { return load_bf16(p); }
};

// In decode keys and values come from memory once and the arithmetic on them is short: fetching ahead by hand keeps more
// lines in flight than the hardware does across the rows of a page.
constexpr int kFetchAheadTokens = 8;

/// Scores of R rows (kTileRows, or a half or quarter of it) with as many tokens as fill the tile: out[r * stride + t]. A score's
/// order is: lanes of dims, one chain each, then the tree of store_tile, which sees tokens beyond kTileTokens as further rows.
template <typename Format, int R>
HEIRLOOM_INLINE void score_tile(const float* const* q, const typename Format::Element* keys, int d, float* out,
                                std::ptrdiff_t stride, bool fetch) {
  constexpr int kTokens = kTileRows * kTileTokens / R;
  Vec acc[kTileRows * kTileTokens];
  for (Vec& a : acc) a = zero();
  for (int i = 0; i < d; i += kLanes) {
    Vec rows[R];
    for (int r = 0; r < R; ++r) rows[r] = load(q[r] + i);
    for (int t = 0; t < kTokens; ++t) {
      if (fetch) __builtin_prefetch(keys + (t + kFetchAheadTokens) * d + i);
      const Vec key = Format::get(keys + t * d + i);
      for (int r = 0; r < R; ++r) {
        Vec& sum = acc[t % kTileTokens * kTileRows + t / kTileTokens * R + r];
        sum = madd(rows[r], key, sum);
      }
    }
  }
  if (R == kTileRows) {
    store_tile(acc, out, stride);
    return;
  }
  float spare[kTileRows * kTileTokens];
  store_tile(acc, spare, kTileTokens);
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < kTokens; ++t) out[r * stride + t] = spare[(t / kTileTokens * R + r) * kTileTokens + t % kTileTokens];
  }
}

template <typename Format, int R>
HEIRLOOM_INLINE void score_rows(const float* q, const typename Format::Element* keys, int begin, int end, int d, float* scores,
                                std::ptrdiff_t stride, bool fetch) {
  const float* tile[R];
  for (int r = 0; r < R; ++r) tile[r] = q + r * static_cast<std::ptrdiff_t>(d);
  for (int t = begin; t < end; t += kTileRows * kTileTokens / R) {
    score_tile<Format, R>(tile, keys + static_cast<std::ptrdiff_t>(t) * d, d, scores + t, stride, fetch);
  }
}

template <int R>
struct Rows {
  static constexpr int kCount = R;
};

template <typename Format>
HEIRLOOM_INLINE void score_all(const float* q, int rows, const void* keys, int tokens, int d, float* scores,
                               std::ptrdiff_t stride) {
  const auto* k = static_cast<const typename Format::Element*>(keys);
  constexpr int kStrip = 16;  // tokens whose keys stay in the first-level cache while all rows pass (16 KiB at 256 dims)
  for (int strip = 0; strip < tokens; strip += kStrip) {
    const int end = tokens < strip + kStrip ? tokens : strip + kStrip;
    int row = 0;
    const auto pass = [&](auto tile_rows) {
      score_rows<Format, decltype(tile_rows)::kCount>(q + row * static_cast<std::ptrdiff_t>(d), k, strip, end, d, scores + row * stride,
                                                     stride, row == 0);
      row += decltype(tile_rows)::kCount;
    };
    while (row + kTileRows <= rows) pass(Rows<kTileRows>());
    if constexpr (kTileRows == 4) {
      if (row + 2 <= rows) pass(Rows<2>());
    }
    if (row < rows) pass(Rows<1>());
  }
}

/// R rows by V vectors of dims; each sum is one chain over ascending tokens.
template <typename Format, int R, int V>
HEIRLOOM_INLINE void weigh_tile(const float* w, std::ptrdiff_t stride, const typename Format::Element* values, int tokens,
                                int d, float* sums, bool add_to, int fetch_bytes) {
  Vec acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < V; ++c) acc[r][c] = add_to ? load(sums + r * static_cast<std::ptrdiff_t>(d) + c * kLanes) : zero();
  }
  for (int t = 0; t < tokens; ++t) {
    const auto* ahead = reinterpret_cast<const char*>(values + static_cast<std::ptrdiff_t>(t + kFetchAheadTokens) * d);
    for (int byte = 0; byte < fetch_bytes; byte += 64) __builtin_prefetch(ahead + byte);
    Vec value[V];
    for (int c = 0; c < V; ++c) value[c] = Format::get(values + static_cast<std::ptrdiff_t>(t) * d + c * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec weight = set(w[r * stride + t]);
      for (int c = 0; c < V; ++c) acc[r][c] = madd(weight, value[c], acc[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < V; ++c) store(sums + r * static_cast<std::ptrdiff_t>(d) + c * kLanes, acc[r][c]);
  }
}

template <typename Format, int V>
HEIRLOOM_INLINE void weigh_strip(const float* w, std::ptrdiff_t stride, int rows, const typename Format::Element* values,
                                 int tokens, int d, float* sums, bool add_to, int fetch_bytes) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) {
    weigh_tile<Format, 4, V>(w + row * stride, stride, values, tokens, d, sums + row * static_cast<std::ptrdiff_t>(d), add_to,
                             row == 0 ? fetch_bytes : 0);
  }
  for (; row + 2 <= rows; row += 2) {
    weigh_tile<Format, 2, V>(w + row * stride, stride, values, tokens, d, sums + row * static_cast<std::ptrdiff_t>(d), add_to,
                             row == 0 ? fetch_bytes : 0);
  }
  if (row < rows) {
    weigh_tile<Format, 1, V>(w + row * stride, stride, values, tokens, d, sums + row * static_cast<std::ptrdiff_t>(d), add_to,
                             row == 0 ? fetch_bytes : 0);
  }
}

/// R rows by V vectors of tokens; each score is one chain over ascending dims.
template <int R, int V>
HEIRLOOM_INLINE void score_transposed_tile(const float* q, std::ptrdiff_t q_stride, const float* keys, std::ptrdiff_t key_stride,
                                           int d, float* scores, std::ptrdiff_t stride) {
  Vec acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < V; ++c) acc[r][c] = zero();
  }
  for (int i = 0; i < d; ++i) {
    Vec key[V];
    for (int c = 0; c < V; ++c) key[c] = load(keys + i * key_stride + c * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec x = set(q[r * q_stride + i]);
      for (int c = 0; c < V; ++c) acc[r][c] = madd(x, key[c], acc[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < V; ++c) store(scores + r * stride + c * kLanes, acc[r][c]);
  }
}

template <int V>
HEIRLOOM_INLINE void score_transposed_strip(const float* q, std::ptrdiff_t q_stride, int rows, const float* keys,
                                            std::ptrdiff_t key_stride, int d, float* scores, std::ptrdiff_t stride) {
  constexpr int kRows = kRegisters == 32 ? 6 : 4;
  int row = 0;
  for (; row + kRows <= rows; row += kRows) {
    score_transposed_tile<kRows, V>(q + row * q_stride, q_stride, keys, key_stride, d, scores + row * stride, stride);
  }
  for (; row < rows; ++row) score_transposed_tile<1, V>(q + row * q_stride, q_stride, keys, key_stride, d, scores + row * stride, stride);
}

template <typename Format>
HEIRLOOM_INLINE void weigh_all(const float* w, std::ptrdiff_t stride, int rows, const void* values, int tokens, int d,
                               float* sums, bool add_to) {
  const auto* v = static_cast<const typename Format::Element*>(values);
  constexpr int kWide = kRegisters == 32 ? 4 : 2;
  // The first strip of dims fetches whole rows for all strips.
  const int row_bytes = d * static_cast<int>(sizeof(typename Format::Element));
  int i = 0;
  for (; i + kWide * kLanes <= d; i += kWide * kLanes) {
    if (kWide == 4 && d - i == 5 * kLanes) break;
    weigh_strip<Format, kWide>(w, stride, rows, v + i, tokens, d, sums + i, add_to, i == 0 ? row_bytes : 0);
  }
  if (kWide == 4 && d - i == 5 * kLanes) {  // the 80 dims of a padded SigLIP head: a strip of one vector would idle on latency
    weigh_strip<Format, 5>(w, stride, rows, v + i, tokens, d, sums + i, add_to, i == 0 ? row_bytes : 0);
    return;
  }
  for (; i < d; i += kLanes) weigh_strip<Format, 1>(w, stride, rows, v + i, tokens, d, sums + i, add_to, i == 0 ? row_bytes : 0);
}

}  // namespace

void attention_rope(const float* x, const float* cos, const float* sin, int half, int d, float* out) noexcept {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec low = load(x + i), high = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(out + i, nmadd(high, s, mul(low, c)));
    store(out + half + i, madd(low, s, mul(high, c)));
  }
  if (i < half) {
    const int left = half - i;
    const Vec low = load_n(x + i, left), high = load_n(x + half + i, left), c = load_n(cos + i, left), s = load_n(sin + i, left);
    store_n(out + i, nmadd(high, s, mul(low, c)), left);
    store_n(out + half + i, madd(low, s, mul(high, c)), left);
  }
  if (out != x) {
    for (int j = 2 * half; j < d; ++j) out[j] = x[j];
  }
}

void attention_norm_rope(const float* x, const float* weight, float eps, int d, const float* cos, const float* sin, int half,
                         float* normed, float* out) noexcept {
  Vec a = zero(), b = zero();
  int i = 0;
  for (; i + 2 * kLanes <= d; i += 2 * kLanes) {
    const Vec u = load(x + i), v = load(x + i + kLanes);
    a = madd(u, u, a);
    b = madd(v, v, b);
  }
  for (; i < d; i += kLanes) {
    const Vec u = d - i >= kLanes ? load(x + i) : load_n(x + i, d - i);
    a = madd(u, u, a);
  }
  const Vec scale = set(1.0f / __builtin_sqrtf(sum(add(a, b)) / static_cast<float>(d) + eps));
  for (i = 0; i + kLanes <= d; i += kLanes) store(normed + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < d) store_n(normed + i, mul(mul(load_n(x + i, d - i), scale), load_n(weight + i, d - i)), d - i);
  attention_rope(normed, cos, sin, half, d, out);
}

void pack_f32(const float* x, int n, void* out) noexcept { __builtin_memcpy(out, x, static_cast<std::size_t>(n) * 4); }
void unpack_f32(const void* x, int n, float* out) noexcept { __builtin_memcpy(out, x, static_cast<std::size_t>(n) * 4); }

#define HEIRLOOM_PACK(format)                                                          \
  void pack_##format(const float* x, int n, void* out) noexcept {                      \
    auto* to = static_cast<std::uint16_t*>(out);                                       \
    int i = 0;                                                                         \
    for (; i + kLanes <= n; i += kLanes) store_##format(to + i, load(x + i));          \
    if (i == n) return;                                                                \
    std::uint16_t spare[kLanes];                                                       \
    store_##format(spare, load_n(x + i, n - i));                                       \
    for (int j = 0; i + j < n; ++j) to[i + j] = spare[j];                              \
  }                                                                                    \
  void unpack_##format(const void* x, int n, float* out) noexcept {                    \
    const auto* from = static_cast<const std::uint16_t*>(x);                           \
    int i = 0;                                                                         \
    for (; i + kLanes <= n; i += kLanes) store(out + i, load_##format(from + i));      \
    if (i == n) return;                                                                \
    std::uint16_t spare[kLanes] = {};                                                  \
    for (int j = 0; i + j < n; ++j) spare[j] = from[i + j];                            \
    store_n(out + i, load_##format(spare), n - i);                                     \
  }
HEIRLOOM_PACK(f16)
HEIRLOOM_PACK(bf16)
#undef HEIRLOOM_PACK

#define HEIRLOOM_SCORE_AND_WEIGH(name, Format)                                                                           \
  void score_##name(const float* q, int rows, const void* keys, int tokens, int d, float* scores, std::ptrdiff_t stride) noexcept { \
    score_all<Format>(q, rows, keys, tokens, d, scores, stride);                                                         \
  }                                                                                                                      \
  void weigh_##name(const float* w, std::ptrdiff_t stride, int rows, const void* values, int tokens, int d, float* sums, \
                    bool add_to) noexcept {                                                                              \
    weigh_all<Format>(w, stride, rows, values, tokens, d, sums, add_to);                                                 \
  }
HEIRLOOM_SCORE_AND_WEIGH(f32, F32)
HEIRLOOM_SCORE_AND_WEIGH(f16, F16)
HEIRLOOM_SCORE_AND_WEIGH(bf16, Bf16)
#undef HEIRLOOM_SCORE_AND_WEIGH

void score_transposed(const float* q, std::ptrdiff_t q_stride, int rows, const float* keys, std::ptrdiff_t key_stride,
                      int tokens, int d, float* scores, std::ptrdiff_t score_stride) noexcept {
  constexpr int kWide = kRegisters == 32 ? 4 : 2;
  int t = 0;
  for (; t + kWide * kLanes <= tokens; t += kWide * kLanes) {
    score_transposed_strip<kWide>(q, q_stride, rows, keys + t, key_stride, d, scores + t, score_stride);
  }
  for (; t < tokens; t += kLanes) score_transposed_strip<1>(q, q_stride, rows, keys + t, key_stride, d, scores + t, score_stride);
}

Partial attention_soften(float* scores, int valid, int padded, float scale) noexcept {
  Vec most = set(-__builtin_inff());
  int t = 0;
  for (; t + kLanes <= valid; t += kLanes) most = max(most, load(scores + t));
  float best = largest(most);
  for (; t < valid; ++t) best = scores[t] > best ? scores[t] : best;

  const Vec top = set(best), by = set(scale);
  Vec total = zero();
  for (t = 0; t + kLanes <= valid; t += kLanes) {
    const Vec e = exp(mul(sub(load(scores + t), top), by));
    store(scores + t, e);
    total = add(total, e);
  }
  if (t < valid) {
    // Lanes past the end would be exp(-top): they go through memory to become zeros.
    float lanes[kLanes] = {};
    store_n(lanes, exp(mul(sub(load_n(scores + t, valid - t), top), by)), valid - t);
    const Vec e = load(lanes);
    store_n(scores + t, e, valid - t);
    total = add(total, e);
  }
  for (t = valid; t < padded; ++t) scores[t] = 0;
  return {best, sum(total)};
}

void attention_merge(Partial* total, float* total_sums, const Partial* block, const float* block_sums, int d, float scale) noexcept {
  const float best = total->largest > block->largest ? total->largest : block->largest;
  const Vec old_factor = exp(set((total->largest - best) * scale)), new_factor = exp(set((block->largest - best) * scale));
  float lanes[kLanes];
  store(lanes, madd(set(block->total), new_factor, mul(set(total->total), old_factor)));
  *total = {best, lanes[0]};
  for (int i = 0; i < d; i += kLanes) {
    store(total_sums + i, madd(load(block_sums + i), new_factor, mul(load(total_sums + i), old_factor)));
  }
}

void attention_finish(const float* sums, float total, const float* gate, int d, float* out) noexcept {
  const Vec scale = set(1.0f / total);
  int i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    const Vec y = mul(load(sums + i), scale);
    store(out + i, gate == nullptr ? y : mul(y, sigmoid(load(gate + i))));
  }
  if (i < d) {
    const Vec y = mul(load_n(sums + i, d - i), scale);
    store_n(out + i, gate == nullptr ? y : mul(y, sigmoid(load_n(gate + i, d - i))), d - i);
  }
}

}  // namespace heirloom::cpu::HEIRLOOM_ISA
