// The largest element of a range, written once for all tiers (rows_<tier>.cc include this after a simd vocabulary).
#pragma once

#include "backend/cpu/kernels/rows/rows_kernels.h"

namespace heirloom::cpu::HEIRLOOM_ISA {

float largest_of(const float* x, std::int64_t n) noexcept {
  Vec a = set(-__builtin_inff()), b = a, c = a, d = a;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = max(a, load(x + i));
    b = max(b, load(x + i + kLanes));
    c = max(c, load(x + i + 2 * kLanes));
    d = max(d, load(x + i + 3 * kLanes));
  }
  float best = largest(max(max(a, b), max(c, d)));
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

}  // namespace heirloom::cpu::HEIRLOOM_ISA
