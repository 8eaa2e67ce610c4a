// The integer vocabulary of panel_body.h, SSSE3: a vector holds 4 bytes of each of four rows of a panel. No SSE4.1: bytes are
// widened by unpacking.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/simd/simd_ssse3.h"

namespace heirloom::cpu::ssse3 {
namespace {

using Codes = __m128i;
constexpr int kMaxRows = 4;
constexpr int kFloatRows = 2;

HEIRLOOM_INLINE Codes load_codes(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
HEIRLOOM_INLINE Codes low_nibbles(Codes v) { return _mm_and_si128(v, _mm_set1_epi8(15)); }
HEIRLOOM_INLINE Codes high_nibbles(Codes v) { return _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15)); }
template <int kShift, int kMask>
HEIRLOOM_INLINE Codes bits(Codes v) {
  if constexpr (kShift > 0) v = _mm_srli_epi16(v, kShift);
  if constexpr (kShift < 0) v = _mm_slli_epi16(v, -kShift);
  return _mm_and_si128(v, _mm_set1_epi8(kMask));
}
template <int kShift>
HEIRLOOM_INLINE Codes words_right(Codes v) {
  return _mm_srli_epi16(v, kShift);
}
HEIRLOOM_INLINE Codes either(Codes a, Codes b) { return _mm_or_si128(a, b); }
HEIRLOOM_INLINE Codes differ(Codes a, Codes b) { return _mm_xor_si128(a, b); }
HEIRLOOM_INLINE Codes broadcast4(const std::int8_t* p) {
  std::int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm_set1_epi32(v);
}
HEIRLOOM_INLINE Codes load4(const std::byte* p) {
  std::int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm_cvtsi32_si128(v);
}
// Finite halves only, without load_f16's denormal floats (an assist of 100 cycles and more each): exponent and mantissa move to
// float's place and the exponent is re-biased. A subnormal half, m 2^-24, then reads as y = 2^-15 + m 2^-25 and is 2 y - 2^-14.
HEIRLOOM_INLINE Vec load_scales(const std::byte* p) {
  const Codes halves = _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const Codes sign = _mm_and_si128(halves, _mm_set1_epi32(static_cast<int>(0x80000000u)));
  const Codes magnitude = _mm_srli_epi32(_mm_xor_si128(halves, sign), 3);
  const Vec y = _mm_castsi128_ps(_mm_add_epi32(magnitude, _mm_set1_epi32(112 << 23)));
  const Vec value = add(y, min(sub(y, set(0x1p-14f)), zero()));
  return _mm_or_ps(value, _mm_castsi128_ps(sign));
}
HEIRLOOM_INLINE Vec unsigned_bytes(const std::byte* p) {
  const Codes words = _mm_unpacklo_epi8(load4(p), _mm_setzero_si128());
  return _mm_cvtepi32_ps(_mm_unpacklo_epi16(words, _mm_setzero_si128()));
}
HEIRLOOM_INLINE Vec signed_bytes(const std::byte* p) {
  const Codes words = _mm_unpacklo_epi8(_mm_setzero_si128(), load4(p));
  return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(_mm_setzero_si128(), words), 24));
}
HEIRLOOM_INLINE Vec to_float(Codes v) { return _mm_cvtepi32_ps(v); }
HEIRLOOM_INLINE Codes to_codes(Vec v) { return _mm_cvtps_epi32(v); }
HEIRLOOM_INLINE Codes add_codes(Codes a, Codes b) { return _mm_add_epi32(a, b); }
HEIRLOOM_INLINE std::int32_t total(Codes v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
}
HEIRLOOM_INLINE void store_bytes(std::int8_t* p, Codes v) {
  const Codes words = _mm_packs_epi32(v, v);
  const std::int32_t bytes = _mm_cvtsi128_si32(_mm_packs_epi16(words, words));
  __builtin_memcpy(p, &bytes, 4);
}

HEIRLOOM_INLINE Codes multiply_pairs(Codes codes, Codes x) { return _mm_maddubs_epi16(codes, x); }
HEIRLOOM_INLINE Codes widen(Codes pairs) { return _mm_madd_epi16(pairs, _mm_set1_epi16(1)); }
HEIRLOOM_INLINE Codes add_pairs(Codes a, Codes b) { return _mm_add_epi16(a, b); }
HEIRLOOM_INLINE Codes set_codes(std::int32_t v) { return _mm_set1_epi32(v); }
HEIRLOOM_INLINE Codes unbias(Codes codes) { return _mm_xor_si128(codes, _mm_set1_epi8(-128)); }
HEIRLOOM_INLINE Codes magnitude(Codes v) { return _mm_abs_epi8(v); }
HEIRLOOM_INLINE Codes with_sign_of(Codes x, Codes weights) { return _mm_sign_epi8(x, weights); }

}  // namespace
}  // namespace heirloom::cpu::ssse3
