// The avx512 tier (F, BW, VL, DQ): vpmaddubsw adds products of unsigned codes and signed activations by pairs in 16 bits,
// which holds 8 pairs of 4-bit codes, 4 of 5-bit and 2 of 6-bit ones (15 * 127 * 2 * 8 < 2^15) before vpmaddwd widens them.
#include "backend/cpu/kernels/linear/simd_avx512.h"

namespace heirloom::cpu {
namespace {

struct Simd : Avx512 {
  static inline I widen(I pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }

  template <int kMaxCode>
  struct Dot {
    static constexpr int kSteps = 32767 / (kMaxCode * 127 * 2);  // additions that 16 bits hold
    I acc, pairs;
    int steps;
    inline void start(std::int32_t offset) {
      acc = _mm512_set1_epi32(offset);
      pairs = _mm512_setzero_si512();
      steps = 0;
    }
    inline void add(I codes, const std::int8_t* x) {
      pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(codes, broadcast4(x)));
      if (++steps % kSteps == 0) {
        acc = _mm512_add_epi32(acc, widen(pairs));
        pairs = _mm512_setzero_si512();
      }
    }
    inline I sum() const { return steps % kSteps == 0 ? acc : _mm512_add_epi32(acc, widen(pairs)); }
  };
};

// Biased bytes: |w| * (x with w's sign), so that a pair stays below 2^15 (128 * 127 * 2); no offset is left to cancel.
template <>
struct Simd::Dot<255> {
  I acc;
  inline void start(std::int32_t) { acc = _mm512_setzero_si512(); }
  inline void add(I codes, const std::int8_t* x) {
    const I weights = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
    const I values = broadcast4(x);
    const I signed_x = _mm512_mask_sub_epi8(values, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), values);
    acc = _mm512_add_epi32(acc, widen(_mm512_maddubs_epi16(_mm512_abs_epi8(weights), signed_x)));
  }
  inline I sum() const { return acc; }
};

}  // namespace
}  // namespace heirloom::cpu

#include "backend/cpu/kernels/linear/activation_template.h"
#include "backend/cpu/kernels/linear/panel_template.h"

namespace heirloom::cpu::avx512 {

void fill_linear_kernels(LinearKernels& table) {
  fill_panels(table);
  table.quantize_row = quantize_row;
  table.swiglu = swiglu;
}

}  // namespace heirloom::cpu::avx512
