// The integer vocabulary of panel_body.h, AVX-512: one zmm register holds the 16 rows of a panel. Shared by the tiers avx512
// and avx512_vnni, which differ in Dot.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/simd/simd_avx512.h"

namespace heirloom::cpu::avx512 {
namespace {

using Codes = __m512i;
constexpr int kMaxRows = 16;
constexpr int kFloatRows = 16;

HEIRLOOM_INLINE Codes load_codes(const std::byte* p) { return _mm512_loadu_si512(p); }
HEIRLOOM_INLINE Codes low_nibbles(Codes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
HEIRLOOM_INLINE Codes high_nibbles(Codes v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
template <int kShift, int kMask>
HEIRLOOM_INLINE Codes bits(Codes v) {
  if constexpr (kShift > 0) v = _mm512_srli_epi16(v, kShift);
  if constexpr (kShift < 0) v = _mm512_slli_epi16(v, -kShift);
  return _mm512_and_si512(v, _mm512_set1_epi8(kMask));
}
template <int kShift>
HEIRLOOM_INLINE Codes words_right(Codes v) {
  return _mm512_srli_epi16(v, kShift);
}
HEIRLOOM_INLINE Codes either(Codes a, Codes b) { return _mm512_or_si512(a, b); }
HEIRLOOM_INLINE Codes differ(Codes a, Codes b) { return _mm512_xor_si512(a, b); }
HEIRLOOM_INLINE Codes broadcast4(const std::int8_t* p) {
  std::int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
HEIRLOOM_INLINE __m128i load16(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
HEIRLOOM_INLINE Vec load_scales(const std::byte* p) { return load_f16(reinterpret_cast<const std::uint16_t*>(p)); }
HEIRLOOM_INLINE Vec unsigned_bytes(const std::byte* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load16(p))); }
HEIRLOOM_INLINE Vec signed_bytes(const std::byte* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(p))); }
HEIRLOOM_INLINE Vec to_float(Codes v) { return _mm512_cvtepi32_ps(v); }
HEIRLOOM_INLINE Codes to_codes(Vec v) { return _mm512_cvtps_epi32(v); }
HEIRLOOM_INLINE Codes add_codes(Codes a, Codes b) { return _mm512_add_epi32(a, b); }
HEIRLOOM_INLINE std::int32_t total(Codes v) { return _mm512_reduce_add_epi32(v); }
HEIRLOOM_INLINE void store_bytes(std::int8_t* p, Codes v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
}

}  // namespace
}  // namespace heirloom::cpu::avx512
