// The vector vocabulary of the kernel bodies (see simd_avx512.h), AVX2 with FMA and F16C: 8 lanes.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define HEIRLOOM_ISA avx2
#define HEIRLOOM_INLINE inline __attribute__((always_inline))

namespace heirloom::cpu::avx2 {
namespace {

using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kTileRows = 2;
constexpr int kTileTokens = 4;
constexpr int kRegisters = 16;

HEIRLOOM_INLINE Vec set(float x) { return _mm256_set1_ps(x); }
HEIRLOOM_INLINE Vec zero() { return _mm256_setzero_ps(); }
HEIRLOOM_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
HEIRLOOM_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
HEIRLOOM_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
HEIRLOOM_INLINE Vec load_n(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
HEIRLOOM_INLINE void store_n(float* p, Vec x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }

HEIRLOOM_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
HEIRLOOM_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
HEIRLOOM_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
HEIRLOOM_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
HEIRLOOM_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
HEIRLOOM_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
HEIRLOOM_INLINE Vec madd(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
HEIRLOOM_INLINE Vec nmadd(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
HEIRLOOM_INLINE Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
HEIRLOOM_INLINE Vec if_greater(Vec a, Vec b, Vec x, Vec y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
HEIRLOOM_INLINE Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HEIRLOOM_INLINE Vec times_pow2(Vec x, Vec n) {
  const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(bits));
}
HEIRLOOM_INLINE Vec split_exponent(Vec x, Vec& mantissa) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i exponent = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
  mantissa = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(exponent, 23)));
  return _mm256_cvtepi32_ps(exponent);
}

/// [A.low + A.high | B.low + B.high] of 128-bit halves.
HEIRLOOM_INLINE Vec fold_halves(Vec a, Vec b) {
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
HEIRLOOM_INLINE Vec fold_lanes(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const Vec cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256d x = _mm256_castps_pd(ab), y = _mm256_castps_pd(cd);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
HEIRLOOM_INLINE void store_tile(const Vec* acc, float* out, std::ptrdiff_t stride) {
  const Vec sums = fold_lanes(fold_halves(acc[0], acc[1]), fold_halves(acc[2], acc[3]), fold_halves(acc[4], acc[5]),
                              fold_halves(acc[6], acc[7]));
  _mm_storeu_ps(out, _mm256_castps256_ps128(sums));
  _mm_storeu_ps(out + stride, _mm256_extractf128_ps(sums, 1));
}
HEIRLOOM_INLINE float sum(Vec a) {
  const Vec half = fold_halves(a, a);
  return _mm256_cvtss_f32(fold_lanes(half, half, half, half));
}
HEIRLOOM_INLINE float largest(Vec a) {
  Vec m = _mm256_max_ps(a, _mm256_permute2f128_ps(a, a, 0x01));
  m = _mm256_max_ps(m, _mm256_permute_ps(m, 0x4e));
  return _mm256_cvtss_f32(_mm256_max_ps(m, _mm256_permute_ps(m, 0xb1)));
}

HEIRLOOM_INLINE Vec load_f16(const std::uint16_t* f16) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(f16)));
}
HEIRLOOM_INLINE Vec load_bf16(const std::uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
HEIRLOOM_INLINE void store_f16(std::uint16_t* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
HEIRLOOM_INLINE void store_bf16(std::uint16_t* p, Vec x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

HEIRLOOM_INLINE void load_taps(const float* w, Vec tap[4]) {
  const Vec a = load(w), b = load(w + 8), c = load(w + 16), d = load(w + 24);  // 2 channels each
  const Vec ch0 = _mm256_permute2f128_ps(a, c, 0x20), ch1 = _mm256_permute2f128_ps(a, c, 0x31);  // 0 | 4, 1 | 5
  const Vec ch2 = _mm256_permute2f128_ps(b, d, 0x20), ch3 = _mm256_permute2f128_ps(b, d, 0x31);
  const __m256d t0 = _mm256_castps_pd(_mm256_unpacklo_ps(ch0, ch1)), t1 = _mm256_castps_pd(_mm256_unpacklo_ps(ch2, ch3));
  const __m256d t2 = _mm256_castps_pd(_mm256_unpackhi_ps(ch0, ch1)), t3 = _mm256_castps_pd(_mm256_unpackhi_ps(ch2, ch3));
  tap[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(t0, t1));
  tap[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(t0, t1));
  tap[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(t2, t3));
  tap[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(t2, t3));
}

}  // namespace
}  // namespace heirloom::cpu::avx2
