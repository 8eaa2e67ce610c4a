// Elementwise ops, written once for all tiers (elementwise_<tier>.cc include this after simd_math.h).
#pragma once

#include "backend/cpu/kernels/elementwise/elementwise_kernels.h"

namespace heirloom::cpu::HEIRLOOM_ISA {

void add_rows(float* x, const float* y, std::int64_t n) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, add(load(x + i), load(y + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    store_n(x + i, add(load_n(x + i, left), load_n(y + i, left)), left);
  }
}

void swiglu_rows(const float* gate, const float* up, float* out, std::int64_t n) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, mul(silu(load(gate + i)), load(up + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    store_n(out + i, mul(silu(load_n(gate + i, left)), load_n(up + i, left)), left);
  }
}

void gelu_tanh_rows(float* x, std::int64_t n) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, gelu_tanh(load(x + i)));
  if (i < n) store_n(x + i, gelu_tanh(load_n(x + i, static_cast<int>(n - i))), static_cast<int>(n - i));
}

void gelu_erf_rows(float* x, std::int64_t n) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, gelu_erf(load(x + i)));
  if (i < n) store_n(x + i, gelu_erf(load_n(x + i, static_cast<int>(n - i))), static_cast<int>(n - i));
}

void add_scaled_row(const float* x, float scale, float* out, std::int64_t n) noexcept {
  const Vec s = set(scale);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, madd(load(x + i), s, load(out + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    store_n(out + i, madd(load_n(x + i, left), s, load_n(out + i, left)), left);
  }
}

}  // namespace heirloom::cpu::HEIRLOOM_ISA
