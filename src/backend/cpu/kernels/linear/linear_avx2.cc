// The avx2 tier (with FMA and F16C): two ymm registers hold the 16 rows of a panel. The 16-bit sums of vpmaddubsw are
// bounded as in linear_avx512.cc.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace heirloom::cpu {
namespace {

struct Simd {
  using I = __m256i;
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kMaxRows = 4;
  static constexpr int kFloatRows = 4;

  static inline I load(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static inline I low_nibbles(I v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static inline I high_nibbles(I v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
  template <int kShift, int kMask>
  static inline I bits(I v) {
    if constexpr (kShift > 0) v = _mm256_srli_epi16(v, kShift);
    if constexpr (kShift < 0) v = _mm256_slli_epi16(v, -kShift);
    return _mm256_and_si256(v, _mm256_set1_epi8(kMask));
  }
  static inline I either(I a, I b) { return _mm256_or_si256(a, b); }
  static inline I broadcast4(const std::int8_t* p) {
    std::int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  }
  static inline __m128i load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static inline __m128i load64(const std::byte* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
  static inline F half_to_float(const std::byte* p) { return _mm256_cvtph_ps(load128(p)); }
  static inline F brain_to_float(const std::byte* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
  }
  static inline F load_floats(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static inline F unsigned_bytes(const std::byte* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load64(p))); }
  static inline F signed_bytes(const std::byte* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64(p))); }
  static inline F broadcast(float v) { return _mm256_set1_ps(v); }
  static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
  static inline F div(F a, F b) { return _mm256_div_ps(a, b); }
  static inline F min(F a, F b) { return _mm256_min_ps(a, b); }
  static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
  static inline F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static inline F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  static inline I to_int(F v) { return _mm256_cvtps_epi32(v); }
  static inline F power_of_two(I n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static inline void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static inline F zero() { return _mm256_setzero_ps(); }
  static inline float largest(F v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  static inline std::int32_t total(I v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
  static inline void store_codes(std::int8_t* p, I v) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
  static inline I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static inline I widen(I pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

  template <int kMaxCode>
  struct Dot {
    static constexpr int kSteps = 32767 / (kMaxCode * 127 * 2);
    I acc, pairs;
    int steps;
    inline void start(std::int32_t offset) {
      acc = _mm256_set1_epi32(offset);
      pairs = _mm256_setzero_si256();
      steps = 0;
    }
    inline void add(I codes, const std::int8_t* x) {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes, broadcast4(x)));
      if (++steps % kSteps == 0) {
        acc = _mm256_add_epi32(acc, widen(pairs));
        pairs = _mm256_setzero_si256();
      }
    }
    inline I sum() const { return steps % kSteps == 0 ? acc : _mm256_add_epi32(acc, widen(pairs)); }
  };
};

template <>
struct Simd::Dot<255> {
  I acc;
  inline void start(std::int32_t) { acc = _mm256_setzero_si256(); }
  inline void add(I codes, const std::int8_t* x) {
    const I weights = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    const I signed_x = _mm256_sign_epi8(broadcast4(x), weights);
    acc = _mm256_add_epi32(acc, widen(_mm256_maddubs_epi16(_mm256_abs_epi8(weights), signed_x)));
  }
  inline I sum() const { return acc; }
};

}  // namespace
}  // namespace heirloom::cpu

#include "backend/cpu/kernels/linear/activation_template.h"
#include "backend/cpu/kernels/linear/panel_template.h"

namespace heirloom::cpu::avx2 {

void fill_linear_kernels(LinearKernels& table) {
  fill_panels(table);
  table.quantize_row = quantize_row;
  table.swiglu = swiglu;
}

}  // namespace heirloom::cpu::avx2
