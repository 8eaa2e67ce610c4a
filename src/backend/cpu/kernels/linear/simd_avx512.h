// The 512-bit vector layer of panel_template.h: one zmm register holds the 16 rows of a panel. Shared by the tiers avx512
// and avx512_vnni, which differ in Dot. Everything lies in an unnamed namespace: see panel_template.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace heirloom::cpu {
namespace {

struct Avx512 {
  using I = __m512i;
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kMaxRows = 16;
  static constexpr int kFloatRows = 16;

  static inline I load(const std::byte* p) { return _mm512_loadu_si512(p); }
  static inline I low_nibbles(I v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static inline I high_nibbles(I v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
  template <int kShift, int kMask>
  static inline I bits(I v) {
    if constexpr (kShift > 0) v = _mm512_srli_epi16(v, kShift);
    if constexpr (kShift < 0) v = _mm512_slli_epi16(v, -kShift);
    return _mm512_and_si512(v, _mm512_set1_epi8(kMask));
  }
  static inline I either(I a, I b) { return _mm512_or_si512(a, b); }
  static inline I broadcast4(const std::int8_t* p) {
    std::int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
  }
  static inline F half_to_float(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static inline F brain_to_float(const std::byte* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static inline F load_floats(const void* p) { return _mm512_loadu_ps(p); }
  static inline F unsigned_bytes(const std::byte* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static inline F signed_bytes(const std::byte* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static inline F broadcast(float v) { return _mm512_set1_ps(v); }
  static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
  static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
  static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
  static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
  static inline F abs(F a) { return _mm512_abs_ps(a); }
  static inline F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static inline I to_int(F v) { return _mm512_cvtps_epi32(v); }
  static inline F power_of_two(I n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  static inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static inline F zero() { return _mm512_setzero_ps(); }
  static inline float largest(F v) { return _mm512_reduce_max_ps(v); }
  static inline std::int32_t total(I v) { return _mm512_reduce_add_epi32(v); }
  static inline void store_codes(std::int8_t* p, I v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
  }
  static inline I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
};

}  // namespace
}  // namespace heirloom::cpu
