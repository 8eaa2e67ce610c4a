// The ssse3 tier: pmaddubsw and pmaddwd on four rows of a panel at a time, the oldest form of this arithmetic (Core 2, 2006). No
// SSE4.1: floats to nearest int by cvtps2dq, bytes widened by unpacking, half precision decoded in integer code. No FMA: its sums equal
// the scalar tier's.
#include <tmmintrin.h>

#include <cstddef>
#include <cstdint>

namespace heirloom::cpu {
namespace {

struct Simd {
  using I = __m128i;
  using F = __m128;
  static constexpr int kLanes = 4;
  static constexpr int kMaxRows = 4;
  static constexpr int kFloatRows = 2;

  static inline I load(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static inline I low_nibbles(I v) { return _mm_and_si128(v, _mm_set1_epi8(15)); }
  static inline I high_nibbles(I v) { return _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15)); }
  template <int kShift, int kMask>
  static inline I bits(I v) {
    if constexpr (kShift > 0) v = _mm_srli_epi16(v, kShift);
    if constexpr (kShift < 0) v = _mm_slli_epi16(v, -kShift);
    return _mm_and_si128(v, _mm_set1_epi8(kMask));
  }
  static inline I either(I a, I b) { return _mm_or_si128(a, b); }
  static inline I broadcast4(const std::int8_t* p) {
    std::int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm_set1_epi32(v);
  }
  static inline I load32(const std::byte* p) {
    std::int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm_cvtsi32_si128(v);
  }
  // Exponent and mantissa move to float's place and the exponent is re-biased; a subnormal half gets the smallest normal
  // exponent and loses it again by subtraction, so that no denormal float (slow on old CPUs) ever appears.
  static inline F half_to_float(const std::byte* p) {
    const I halves = _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_setzero_si128());
    const I magnitude = _mm_slli_epi32(_mm_and_si128(halves, _mm_set1_epi32(0x7fff)), 13);
    const I sign = _mm_slli_epi32(_mm_and_si128(halves, _mm_set1_epi32(0x8000)), 16);
    const I subnormal = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(1 << 23));
    const I biased = _mm_add_epi32(_mm_add_epi32(magnitude, _mm_set1_epi32(112 << 23)),
                                   _mm_and_si128(subnormal, _mm_set1_epi32(1 << 23)));
    const F value = _mm_sub_ps(_mm_castsi128_ps(biased), _mm_castsi128_ps(_mm_and_si128(subnormal, _mm_set1_epi32(113 << 23))));
    return _mm_or_ps(value, _mm_castsi128_ps(sign));
  }
  static inline F brain_to_float(const std::byte* p) {
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static inline F load_floats(const void* p) { return _mm_loadu_ps(static_cast<const float*>(p)); }
  static inline F unsigned_bytes(const std::byte* p) {
    const I words = _mm_unpacklo_epi8(load32(p), _mm_setzero_si128());
    return _mm_cvtepi32_ps(_mm_unpacklo_epi16(words, _mm_setzero_si128()));
  }
  static inline F signed_bytes(const std::byte* p) {
    const I words = _mm_unpacklo_epi8(_mm_setzero_si128(), load32(p));
    return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(_mm_setzero_si128(), words), 24));
  }
  static inline F broadcast(float v) { return _mm_set1_ps(v); }
  static inline F fma(F a, F b, F c) { return _mm_add_ps(c, _mm_mul_ps(a, b)); }
  static inline F fnma(F a, F b, F c) { return _mm_sub_ps(c, _mm_mul_ps(a, b)); }
  static inline F mul(F a, F b) { return _mm_mul_ps(a, b); }
  static inline F add(F a, F b) { return _mm_add_ps(a, b); }
  static inline F div(F a, F b) { return _mm_div_ps(a, b); }
  static inline F min(F a, F b) { return _mm_min_ps(a, b); }
  static inline F max(F a, F b) { return _mm_max_ps(a, b); }
  static inline F abs(F a) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), a); }
  static inline F to_float(I v) { return _mm_cvtepi32_ps(v); }
  static inline I to_int(F v) { return _mm_cvtps_epi32(v); }
  static inline F power_of_two(I n) { return _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(n, _mm_set1_epi32(127)), 23)); }
  static inline void store(float* p, F v) { _mm_storeu_ps(p, v); }
  static inline F zero() { return _mm_setzero_ps(); }
  static inline float largest(F v) {
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps(v, v, 1)));
  }
  static inline std::int32_t total(I v) {
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
  }
  static inline void store_codes(std::int8_t* p, I v) {
    const I words = _mm_packs_epi32(v, v);
    const std::int32_t bytes = _mm_cvtsi128_si32(_mm_packs_epi16(words, words));
    __builtin_memcpy(p, &bytes, 4);
  }
  static inline I add_int(I a, I b) { return _mm_add_epi32(a, b); }
  static inline I widen(I pairs) { return _mm_madd_epi16(pairs, _mm_set1_epi16(1)); }

  template <int kMaxCode>
  struct Dot {
    static constexpr int kSteps = 32767 / (kMaxCode * 127 * 2);  // additions that 16 bits hold: linear_avx512.cc
    I acc, pairs;
    int steps;
    inline void start(std::int32_t offset) {
      acc = _mm_set1_epi32(offset);
      pairs = _mm_setzero_si128();
      steps = 0;
    }
    inline void add(I codes, const std::int8_t* x) {
      pairs = _mm_add_epi16(pairs, _mm_maddubs_epi16(codes, broadcast4(x)));
      if (++steps % kSteps == 0) {
        acc = _mm_add_epi32(acc, widen(pairs));
        pairs = _mm_setzero_si128();
      }
    }
    inline I sum() const { return steps % kSteps == 0 ? acc : _mm_add_epi32(acc, widen(pairs)); }
  };
};

// Biased bytes: |w| * (x with w's sign), so that a pair stays below 2^15; no offset is left to cancel.
template <>
struct Simd::Dot<255> {
  I acc;
  inline void start(std::int32_t) { acc = _mm_setzero_si128(); }
  inline void add(I codes, const std::int8_t* x) {
    const I weights = _mm_xor_si128(codes, _mm_set1_epi8(-128));
    const I signed_x = _mm_sign_epi8(broadcast4(x), weights);
    acc = _mm_add_epi32(acc, widen(_mm_maddubs_epi16(_mm_abs_epi8(weights), signed_x)));
  }
  inline I sum() const { return acc; }
};

}  // namespace
}  // namespace heirloom::cpu

#include "backend/cpu/kernels/linear/activation_template.h"
#include "backend/cpu/kernels/linear/panel_template.h"

namespace heirloom::cpu::ssse3 {

void fill_linear_kernels(LinearKernels& table) {
  fill_panels(table);
  table.quantize_row = quantize_row;
  table.swiglu = swiglu;
}

}  // namespace heirloom::cpu::ssse3
