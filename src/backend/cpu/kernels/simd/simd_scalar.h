// The vector vocabulary of the kernel bodies (see simd_avx512.h) with one lane: plain C++, any CPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/half.h"

#define HEIRLOOM_ISA scalar
#define HEIRLOOM_INLINE inline __attribute__((always_inline))

namespace heirloom::cpu::scalar {
namespace {

using Vec = float;
constexpr int kLanes = 1;
constexpr int kTileRows = 1;
constexpr int kTileTokens = 1;
constexpr int kRegisters = 16;

HEIRLOOM_INLINE Vec set(float x) { return x; }
HEIRLOOM_INLINE Vec zero() { return 0.0f; }
HEIRLOOM_INLINE Vec load(const float* p) { return *p; }
HEIRLOOM_INLINE void store(float* p, Vec x) { *p = x; }
HEIRLOOM_INLINE Vec load_n(const float* p, int n) { return n > 0 ? *p : 0.0f; }
HEIRLOOM_INLINE void store_n(float* p, Vec x, int n) {
  if (n > 0) *p = x;
}

HEIRLOOM_INLINE Vec add(Vec a, Vec b) { return a + b; }
HEIRLOOM_INLINE Vec sub(Vec a, Vec b) { return a - b; }
HEIRLOOM_INLINE Vec mul(Vec a, Vec b) { return a * b; }
HEIRLOOM_INLINE Vec div(Vec a, Vec b) { return a / b; }
HEIRLOOM_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
HEIRLOOM_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
HEIRLOOM_INLINE Vec madd(Vec a, Vec b, Vec c) { return a * b + c; }
HEIRLOOM_INLINE Vec nmadd(Vec a, Vec b, Vec c) { return c - a * b; }
HEIRLOOM_INLINE Vec abs(Vec a) { return std::fabs(a); }
HEIRLOOM_INLINE Vec if_greater(Vec a, Vec b, Vec x, Vec y) { return a > b ? x : y; }
/// For |a| < 2^22: beyond 1.5 * 2^23 floats are integers, and the addition rounds to nearest even.
HEIRLOOM_INLINE Vec round(Vec a) { return (a + 12582912.0f) - 12582912.0f; }
HEIRLOOM_INLINE Vec times_pow2(Vec x, Vec n) {
  return x * std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23);
}
HEIRLOOM_INLINE Vec split_exponent(Vec x, Vec& mantissa) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t exponent = (bits - 0x3f3504f3) >> 23;
  mantissa = std::bit_cast<float>(bits - exponent * (1 << 23));
  return static_cast<float>(exponent);
}

HEIRLOOM_INLINE void store_tile(const Vec* acc, float* out, std::ptrdiff_t) { *out = *acc; }
HEIRLOOM_INLINE float sum(Vec a) { return a; }
HEIRLOOM_INLINE float largest(Vec a) { return a; }

HEIRLOOM_INLINE Vec load_f16(const std::uint16_t* f16) { return f16_to_f32(*f16); }
HEIRLOOM_INLINE Vec load_bf16(const std::uint16_t* p) { return bf16_to_f32(*p); }
HEIRLOOM_INLINE void store_f16(std::uint16_t* p, Vec x) { *p = f32_to_f16(x); }
HEIRLOOM_INLINE void store_bf16(std::uint16_t* p, Vec x) { *p = f32_to_bf16(x); }

HEIRLOOM_INLINE void load_taps(const float* w, Vec tap[4]) {
  for (int j = 0; j < 4; ++j) tap[j] = w[j];
}

}  // namespace
}  // namespace heirloom::cpu::scalar
