// The vector vocabulary of the kernel bodies (see simd_avx512.h), SSSE3: 4 lanes, no FMA, no half instructions.
#pragma once

#include <tmmintrin.h>

#include <cstddef>
#include <cstdint>

#define HEIRLOOM_ISA ssse3
#define HEIRLOOM_INLINE inline __attribute__((always_inline))

namespace heirloom::cpu::ssse3 {
namespace {

using Vec = __m128;
constexpr int kLanes = 4;
constexpr int kTileRows = 1;
constexpr int kTileTokens = 4;
constexpr int kRegisters = 16;

HEIRLOOM_INLINE Vec set(float x) { return _mm_set1_ps(x); }
HEIRLOOM_INLINE Vec zero() { return _mm_setzero_ps(); }
HEIRLOOM_INLINE Vec load(const float* p) { return _mm_loadu_ps(p); }
HEIRLOOM_INLINE void store(float* p, Vec x) { _mm_storeu_ps(p, x); }
HEIRLOOM_INLINE Vec load_n(const float* p, int n) {
  float lanes[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return _mm_loadu_ps(lanes);
}
HEIRLOOM_INLINE void store_n(float* p, Vec x, int n) {
  float lanes[4];
  _mm_storeu_ps(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

HEIRLOOM_INLINE Vec add(Vec a, Vec b) { return _mm_add_ps(a, b); }
HEIRLOOM_INLINE Vec sub(Vec a, Vec b) { return _mm_sub_ps(a, b); }
HEIRLOOM_INLINE Vec mul(Vec a, Vec b) { return _mm_mul_ps(a, b); }
HEIRLOOM_INLINE Vec div(Vec a, Vec b) { return _mm_div_ps(a, b); }
HEIRLOOM_INLINE Vec max(Vec a, Vec b) { return _mm_max_ps(a, b); }
HEIRLOOM_INLINE Vec min(Vec a, Vec b) { return _mm_min_ps(a, b); }
HEIRLOOM_INLINE Vec madd(Vec a, Vec b, Vec c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
HEIRLOOM_INLINE Vec nmadd(Vec a, Vec b, Vec c) { return _mm_sub_ps(c, _mm_mul_ps(a, b)); }
HEIRLOOM_INLINE Vec abs(Vec a) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), a); }
HEIRLOOM_INLINE Vec select(Vec mask, Vec x, Vec y) { return _mm_or_ps(_mm_and_ps(mask, x), _mm_andnot_ps(mask, y)); }
HEIRLOOM_INLINE Vec if_greater(Vec a, Vec b, Vec x, Vec y) { return select(_mm_cmpgt_ps(a, b), x, y); }
/// For |a| < 2^31: SSE2 has no roundps, the conversion rounds to nearest even.
HEIRLOOM_INLINE Vec round(Vec a) { return _mm_cvtepi32_ps(_mm_cvtps_epi32(a)); }
HEIRLOOM_INLINE Vec times_pow2(Vec x, Vec n) {
  const __m128i bits = _mm_slli_epi32(_mm_add_epi32(_mm_cvtps_epi32(n), _mm_set1_epi32(127)), 23);
  return _mm_mul_ps(x, _mm_castsi128_ps(bits));
}
HEIRLOOM_INLINE Vec split_exponent(Vec x, Vec& mantissa) {
  const __m128i bits = _mm_castps_si128(x);
  const __m128i exponent = _mm_srai_epi32(_mm_sub_epi32(bits, _mm_set1_epi32(0x3f3504f3)), 23);
  mantissa = _mm_castsi128_ps(_mm_sub_epi32(bits, _mm_slli_epi32(exponent, 23)));
  return _mm_cvtepi32_ps(exponent);
}

HEIRLOOM_INLINE Vec fold_lanes(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const Vec cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}
HEIRLOOM_INLINE void store_tile(const Vec* acc, float* out, std::ptrdiff_t) {
  _mm_storeu_ps(out, fold_lanes(acc[0], acc[1], acc[2], acc[3]));
}
HEIRLOOM_INLINE float sum(Vec a) { return _mm_cvtss_f32(fold_lanes(a, a, a, a)); }
HEIRLOOM_INLINE float largest(Vec a) {
  const Vec m = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ps(m, _mm_shuffle_ps(m, m, 0x55)));
}

/// Half to float: the exponent is rebiased by a multiplication, which also normalises subnormals; infinities and NaNs get
/// their exponent back by hand.
HEIRLOOM_INLINE Vec load_f16(const std::uint16_t* f16) {
  const __m128i half = _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(f16)), _mm_setzero_si128());
  const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi32(0x7fff));
  const __m128i sign = _mm_slli_epi32(_mm_andnot_si128(_mm_set1_epi32(0x7fff), half), 16);
  const Vec scaled = _mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(magnitude, 13)), _mm_set1_ps(0x1p112f));
  const __m128i special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
  const __m128i exponent = _mm_and_si128(special, _mm_set1_epi32(0x7f800000));
  return _mm_or_ps(scaled, _mm_castsi128_ps(_mm_or_si128(sign, exponent)));
}
HEIRLOOM_INLINE Vec load_bf16(const std::uint16_t* p) {
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
}
/// The low 16 bits of each 32-bit lane to 4 consecutive values.
HEIRLOOM_INLINE void store_low16(std::uint16_t* p, __m128i x) {
  const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi8(x, order));
}
/// Float to half, nearest even: the integer path of base/half.h in lanes.
HEIRLOOM_INLINE void store_f16(std::uint16_t* p, Vec x) {
  const __m128i bits = _mm_castps_si128(x);
  const __m128i sign = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(0x8000));
  const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fffffff));
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(magnitude, 13), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(magnitude, _mm_add_epi32(odd, _mm_set1_epi32(0xfff)));
  const __m128i normal = _mm_srli_epi32(_mm_sub_epi32(rounded, _mm_set1_epi32(0x38000000)), 13);
  const Vec half = _mm_set1_ps(0.5f);
  const __m128i subnormal = _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(magnitude), half)), _mm_castps_si128(half));
  const __m128i nan = _mm_or_si128(_mm_set1_epi32(0x7e00), _mm_and_si128(_mm_srli_epi32(magnitude, 13), _mm_set1_epi32(0x3ff)));
  const auto pick = [](__m128i mask, __m128i a, __m128i b) {
    return _mm_or_si128(_mm_and_si128(mask, a), _mm_andnot_si128(mask, b));
  };
  __m128i result = pick(_mm_cmpgt_epi32(_mm_set1_epi32(0x38800000), magnitude), subnormal, normal);
  result = pick(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x477fefff)), _mm_set1_epi32(0x7c00), result);
  result = pick(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000)), nan, result);
  store_low16(p, _mm_or_si128(result, sign));
}
HEIRLOOM_INLINE void store_bf16(std::uint16_t* p, Vec x) {
  const __m128i bits = _mm_castps_si128(x);
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_srli_epi32(_mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff))), 16);
  const __m128i quiet = _mm_or_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(0x40));
  const Vec chosen = select(_mm_cmpunord_ps(x, x), _mm_castsi128_ps(quiet), _mm_castsi128_ps(rounded));
  store_low16(p, _mm_castps_si128(chosen));
}

HEIRLOOM_INLINE void load_taps(const float* w, Vec tap[4]) {
  const Vec ch0 = load(w), ch1 = load(w + 4), ch2 = load(w + 8), ch3 = load(w + 12);
  const Vec t0 = _mm_unpacklo_ps(ch0, ch1), t1 = _mm_unpacklo_ps(ch2, ch3);
  const Vec t2 = _mm_unpackhi_ps(ch0, ch1), t3 = _mm_unpackhi_ps(ch2, ch3);
  tap[0] = _mm_movelh_ps(t0, t1);
  tap[1] = _mm_movehl_ps(t1, t0);
  tap[2] = _mm_movelh_ps(t2, t3);
  tap[3] = _mm_movehl_ps(t3, t2);
}

}  // namespace
}  // namespace heirloom::cpu::ssse3
