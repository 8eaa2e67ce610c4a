// The avx512_vnni tier: vpdpbusd multiplies 64 unsigned codes by 64 signed activations and adds them by fours, exactly
// (Intel SDM vol. 2, VPDPBUSD; the form without saturation).
// clang-format off: the bodies are written in the vocabulary that comes first.
#include "backend/cpu/kernels/linear/codes_avx512.h"

namespace heirloom::cpu::avx512 {
namespace {

template <int kMaxCode>
struct Dot {
  Codes acc;
  HEIRLOOM_INLINE void start(std::int32_t offset) { acc = _mm512_set1_epi32(offset); }
  HEIRLOOM_INLINE void add(Codes codes, const std::int8_t* x) { acc = _mm512_dpbusd_epi32(acc, codes, broadcast4(x)); }
  HEIRLOOM_INLINE Codes sum() const { return acc; }
};

}  // namespace
}  // namespace heirloom::cpu::avx512

#include "backend/cpu/kernels/linear/panel_body.h"

namespace heirloom::cpu::avx512_vnni {

void fill_linear_kernels(LinearKernels& table) { avx512::fill_integer_panels(table); }

}  // namespace heirloom::cpu::avx512_vnni
