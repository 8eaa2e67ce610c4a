// The avx2 tier (with FMA and F16C): two ymm registers hold the 16 rows of a panel.
// clang-format off: the bodies are written in the vocabulary that comes first.
#include "backend/cpu/kernels/simd/simd_avx2.h"

namespace heirloom::cpu::avx2 {
namespace {

using Codes = __m256i;
constexpr int kMaxRows = 4;
constexpr int kFloatRows = 4;

HEIRLOOM_INLINE Codes load_codes(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
HEIRLOOM_INLINE Codes low_nibbles(Codes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
HEIRLOOM_INLINE Codes high_nibbles(Codes v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
template <int kShift, int kMask>
HEIRLOOM_INLINE Codes bits(Codes v) {
  if constexpr (kShift > 0) v = _mm256_srli_epi16(v, kShift);
  if constexpr (kShift < 0) v = _mm256_slli_epi16(v, -kShift);
  return _mm256_and_si256(v, _mm256_set1_epi8(kMask));
}
template <int kShift>
HEIRLOOM_INLINE Codes words_right(Codes v) {
  return _mm256_srli_epi16(v, kShift);
}
HEIRLOOM_INLINE Codes either(Codes a, Codes b) { return _mm256_or_si256(a, b); }
HEIRLOOM_INLINE Codes differ(Codes a, Codes b) { return _mm256_xor_si256(a, b); }
HEIRLOOM_INLINE Codes broadcast4(const std::int8_t* p) {
  std::int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}
HEIRLOOM_INLINE __m128i load8(const std::byte* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
HEIRLOOM_INLINE Vec load_scales(const std::byte* p) { return load_f16(reinterpret_cast<const std::uint16_t*>(p)); }
HEIRLOOM_INLINE Vec unsigned_bytes(const std::byte* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(p))); }
HEIRLOOM_INLINE Vec signed_bytes(const std::byte* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p))); }
HEIRLOOM_INLINE Vec to_float(Codes v) { return _mm256_cvtepi32_ps(v); }
HEIRLOOM_INLINE Codes to_codes(Vec v) { return _mm256_cvtps_epi32(v); }
HEIRLOOM_INLINE Codes add_codes(Codes a, Codes b) { return _mm256_add_epi32(a, b); }
HEIRLOOM_INLINE std::int32_t total(Codes v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
HEIRLOOM_INLINE void store_bytes(std::int8_t* p, Codes v) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

HEIRLOOM_INLINE Codes multiply_pairs(Codes codes, Codes x) { return _mm256_maddubs_epi16(codes, x); }
HEIRLOOM_INLINE Codes widen(Codes pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
HEIRLOOM_INLINE Codes add_pairs(Codes a, Codes b) { return _mm256_add_epi16(a, b); }
HEIRLOOM_INLINE Codes set_codes(std::int32_t v) { return _mm256_set1_epi32(v); }
HEIRLOOM_INLINE Codes unbias(Codes codes) { return _mm256_xor_si256(codes, _mm256_set1_epi8(-128)); }
HEIRLOOM_INLINE Codes magnitude(Codes v) { return _mm256_abs_epi8(v); }
HEIRLOOM_INLINE Codes with_sign_of(Codes x, Codes weights) { return _mm256_sign_epi8(x, weights); }

}  // namespace
}  // namespace heirloom::cpu::avx2

#include "backend/cpu/kernels/linear/dot_pairs.h"
#include "backend/cpu/kernels/linear/panel_body.h"
#include "backend/cpu/kernels/linear/quantize_body.h"

namespace heirloom::cpu::avx2 {

void fill_linear_kernels(LinearKernels& table) {
  fill_integer_panels(table);
  fill_float_panels(table);
  table.quantize_row = quantize_row;
}

}  // namespace heirloom::cpu::avx2
