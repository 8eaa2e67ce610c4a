// The avx512 tier (F, BW, VL, DQ): vpmaddubsw adds products of unsigned codes and signed activations by pairs in 16 bits,
// which holds 8 pairs of 4-bit codes, 4 of 5-bit and 2 of 6-bit ones (15 * 127 * 2 * 8 < 2^15) before vpmaddwd widens them.
// clang-format off: the bodies are written in the vocabulary that comes first.
#include "backend/cpu/kernels/linear/codes_avx512.h"

namespace heirloom::cpu::avx512 {
namespace {

HEIRLOOM_INLINE Codes multiply_pairs(Codes codes, Codes x) { return _mm512_maddubs_epi16(codes, x); }
HEIRLOOM_INLINE Codes widen(Codes pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }
HEIRLOOM_INLINE Codes add_pairs(Codes a, Codes b) { return _mm512_add_epi16(a, b); }
HEIRLOOM_INLINE Codes set_codes(std::int32_t v) { return _mm512_set1_epi32(v); }
HEIRLOOM_INLINE Codes unbias(Codes codes) { return _mm512_xor_si512(codes, _mm512_set1_epi8(-128)); }
HEIRLOOM_INLINE Codes magnitude(Codes v) { return _mm512_abs_epi8(v); }
HEIRLOOM_INLINE Codes with_sign_of(Codes x, Codes weights) {
  return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), x);
}

}  // namespace
}  // namespace heirloom::cpu::avx512

#include "backend/cpu/kernels/linear/dot_pairs.h"
#include "backend/cpu/kernels/linear/panel_body.h"
#include "backend/cpu/kernels/linear/quantize_body.h"

namespace heirloom::cpu::avx512 {

void fill_linear_kernels(LinearKernels& table) {
  fill_integer_panels(table);
  fill_float_panels(table);
  table.quantize_row = quantize_row;
}

}  // namespace heirloom::cpu::avx512
