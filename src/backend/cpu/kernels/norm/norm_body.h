// Row norms, written once for all tiers (norm_<tier>.cc include this after a simd vocabulary).
#pragma once

#include "backend/cpu/kernels/norm/norm_kernels.h"

namespace heirloom::cpu::HEIRLOOM_ISA {
namespace {

/// Sum over i of f(i-th vector), in four interleaved chains so that the additions overlap; f(i, n) yields lanes i.. of
/// which the last n are zero padded.
template <typename Full, typename Partial>
HEIRLOOM_INLINE float sum_row(std::int64_t n, const Full& full, const Partial& partial) {
  Vec a = zero(), b = zero(), c = zero(), d = zero();
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = full(i, a);
    b = full(i + kLanes, b);
    c = full(i + 2 * kLanes, c);
    d = full(i + 3 * kLanes, d);
  }
  for (; i + kLanes <= n; i += kLanes) a = full(i, a);
  if (i < n) b = partial(i, static_cast<int>(n - i), b);
  return sum(add(add(a, b), add(c, d)));
}

HEIRLOOM_INLINE float square_sum(const float* x, std::int64_t n) {
  return sum_row(
      n,
      [&](std::int64_t i, Vec acc) {
        const Vec v = load(x + i);
        return madd(v, v, acc);
      },
      [&](std::int64_t i, int left, Vec acc) {
        const Vec v = load_n(x + i, left);
        return madd(v, v, acc);
      });
}

HEIRLOOM_INLINE float inverse_root(float mean, float eps) { return 1.0f / __builtin_sqrtf(mean + eps); }

HEIRLOOM_INLINE void scale_row(const float* x, float scale, const float* weight, std::int64_t n, float* out) {
  const Vec s = set(scale);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, mul(mul(load(x + i), s), load(weight + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    store_n(out + i, mul(mul(load_n(x + i, left), s), load_n(weight + i, left)), left);
  }
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* out) noexcept {
  scale_row(x, inverse_root(square_sum(x, n) / static_cast<float>(n), eps), weight, n, out);
}

void add_rms_norm(float* residual, const float* delta, const float* weight, float eps, std::int64_t n, float* out) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(residual + i, add(load(residual + i), load(delta + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    store_n(residual + i, add(load_n(residual + i, left), load_n(delta + i, left)), left);
  }
  rms_norm(residual, weight, eps, n, out);
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t n, float* out) noexcept {
  const auto count = static_cast<float>(n);
  const float mean = sum_row(
                         n, [&](std::int64_t i, Vec acc) { return add(acc, load(x + i)); },
                         [&](std::int64_t i, int left, Vec acc) { return add(acc, load_n(x + i, left)); }) /
                     count;
  const Vec m = set(mean);
  const float variance = sum_row(
                             n,
                             [&](std::int64_t i, Vec acc) {
                               const Vec v = sub(load(x + i), m);
                               return madd(v, v, acc);
                             },
                             [&](std::int64_t i, int left, Vec acc) {
                               // Padding must not count: subtract the mean from the loaded lanes only.
                               float lanes[kLanes];
                               store_n(lanes, sub(load_n(x + i, left), m), left);
                               const Vec v = load_n(lanes, left);
                               return madd(v, v, acc);
                             }) /
                         count;
  const Vec s = set(inverse_root(variance, eps));
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, madd(mul(sub(load(x + i), m), s), load(weight + i), load(bias + i)));
  }
  if (i < n) {
    const int left = static_cast<int>(n - i);
    const Vec y = madd(mul(sub(load_n(x + i, left), m), s), load_n(weight + i, left), load_n(bias + i, left));
    store_n(out + i, y, left);
  }
}

}  // namespace heirloom::cpu::HEIRLOOM_ISA
