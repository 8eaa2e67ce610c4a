// The vector vocabulary of the kernel bodies, AVX-512 (F, BW, VL, DQ): 16 lanes. simd_avx2.h, simd_ssse3.h and
// simd_scalar.h define the same names; a translation unit includes exactly one of them, then the bodies. Everything is in an
// unnamed namespace inside the ISA's own, so that no symbol of it can meet another translation unit's.
#pragma once

// GCC 12's own header warns about its deliberately undefined vectors (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstdint>

#define HEIRLOOM_ISA avx512
#define HEIRLOOM_INLINE inline __attribute__((always_inline))

namespace heirloom::cpu::avx512 {
namespace {

using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kTileRows = 4;    // store_tile: rows and tokens of a tile of kLanes accumulators
constexpr int kTileTokens = 4;
constexpr int kRegisters = 32;

HEIRLOOM_INLINE Vec set(float x) { return _mm512_set1_ps(x); }
HEIRLOOM_INLINE Vec zero() { return _mm512_setzero_ps(); }
HEIRLOOM_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
HEIRLOOM_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
HEIRLOOM_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
/// The first n (0..kLanes) floats, zeros above them.
HEIRLOOM_INLINE Vec load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
HEIRLOOM_INLINE void store_n(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

HEIRLOOM_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
HEIRLOOM_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
HEIRLOOM_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
HEIRLOOM_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
HEIRLOOM_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
HEIRLOOM_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
/// a * b + c and c - a * b, fused where the ISA can.
HEIRLOOM_INLINE Vec madd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
HEIRLOOM_INLINE Vec nmadd(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
HEIRLOOM_INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }
/// a > b ? x : y
HEIRLOOM_INLINE Vec if_greater(Vec a, Vec b, Vec x, Vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
HEIRLOOM_INLINE Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/// x * 2^n for integral n in [-126, 127]
HEIRLOOM_INLINE Vec times_pow2(Vec x, Vec n) {
  const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_mul_ps(x, _mm512_castsi512_ps(bits));
}
/// x = mantissa * 2^result with mantissa in [sqrt(1/2), sqrt(2)), for positive normal x.
HEIRLOOM_INLINE Vec split_exponent(Vec x, Vec& mantissa) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i exponent = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
  mantissa = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(exponent, 23)));
  return _mm512_cvtepi32_ps(exponent);
}

/// [A.low + A.high | B.low + B.high] of 256-bit halves.
HEIRLOOM_INLINE Vec fold_halves(Vec a, Vec b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
/// From folded pairs: [A B C D], 4 lanes each.
HEIRLOOM_INLINE Vec fold_quarters(Vec ab, Vec cd) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
HEIRLOOM_INLINE Vec fold_lanes(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const Vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
/// out[row * stride + token] = sum of the lanes of acc[token * kTileRows + row]. Each sum has the same tree of additions.
HEIRLOOM_INLINE void store_tile(const Vec* acc, float* out, std::ptrdiff_t stride) {
  Vec quads[4];
  for (int token = 0; token < 4; ++token) {
    quads[token] = fold_quarters(fold_halves(acc[4 * token], acc[4 * token + 1]),
                                 fold_halves(acc[4 * token + 2], acc[4 * token + 3]));
  }
  const Vec sums = fold_lanes(quads[0], quads[1], quads[2], quads[3]);
  _mm_storeu_ps(out, _mm512_castps512_ps128(sums));
  _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(sums, 1));
  _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(sums, 2));
  _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(sums, 3));
}
HEIRLOOM_INLINE float sum(Vec a) {
  const Vec half = fold_halves(a, a);
  const Vec quarter = fold_quarters(half, half);
  return _mm512_cvtss_f32(fold_lanes(quarter, quarter, quarter, quarter));
}
HEIRLOOM_INLINE float largest(Vec a) {
  Vec m = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0xb1));
  m = _mm512_max_ps(m, _mm512_permute_ps(m, 0x4e));
  return _mm512_cvtss_f32(_mm512_max_ps(m, _mm512_permute_ps(m, 0xb1)));
}

HEIRLOOM_INLINE Vec load_f16(const std::uint16_t* f16) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(f16)));
}
HEIRLOOM_INLINE Vec load_bf16(const std::uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
HEIRLOOM_INLINE void store_f16(std::uint16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
HEIRLOOM_INLINE void store_bf16(std::uint16_t* p, Vec x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
}

/// tap[j] lane c = w[4 c + j]: the conv's four taps of kLanes channels.
HEIRLOOM_INLINE void load_taps(const float* w, Vec tap[4]) {
  const Vec a = load(w), b = load(w + 16), c = load(w + 32), d = load(w + 48);  // 4 channels each, [channel][tap]
  // 4 x 4 transpose inside each 128-bit lane after gathering lane l of a, b, c, d = channels 4 (abcd) + l.
  const Vec ab_lo = _mm512_shuffle_f32x4(a, b, 0x88), ab_hi = _mm512_shuffle_f32x4(a, b, 0xdd);
  const Vec cd_lo = _mm512_shuffle_f32x4(c, d, 0x88), cd_hi = _mm512_shuffle_f32x4(c, d, 0xdd);
  const Vec ch0 = _mm512_shuffle_f32x4(ab_lo, cd_lo, 0x88);  // channels 0, 4, 8, 12
  const Vec ch1 = _mm512_shuffle_f32x4(ab_hi, cd_hi, 0x88);  // channels 1, 5, 9, 13
  const Vec ch2 = _mm512_shuffle_f32x4(ab_lo, cd_lo, 0xdd);
  const Vec ch3 = _mm512_shuffle_f32x4(ab_hi, cd_hi, 0xdd);
  const __m512d t0 = _mm512_castps_pd(_mm512_unpacklo_ps(ch0, ch1)), t1 = _mm512_castps_pd(_mm512_unpacklo_ps(ch2, ch3));
  const __m512d t2 = _mm512_castps_pd(_mm512_unpackhi_ps(ch0, ch1)), t3 = _mm512_castps_pd(_mm512_unpackhi_ps(ch2, ch3));
  tap[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(t0, t1));
  tap[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t0, t1));
  tap[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(t2, t3));
  tap[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(t2, t3));
}

}  // namespace
}  // namespace heirloom::cpu::avx512
