// The avx512_vnni tier: vpdpbusd multiplies 64 unsigned codes by 64 signed activations and adds them by fours, exactly
// (Intel SDM vol. 2, VPDPBUSD; the form without saturation).
#include "backend/cpu/kernels/linear/simd_avx512.h"

namespace heirloom::cpu {
namespace {

struct Simd : Avx512 {
  template <int kMaxCode>
  struct Dot {
    I acc;
    inline void start(std::int32_t offset) { acc = _mm512_set1_epi32(offset); }
    inline void add(I codes, const std::int8_t* x) { acc = _mm512_dpbusd_epi32(acc, codes, broadcast4(x)); }
    inline I sum() const { return acc; }
  };
};

}  // namespace
}  // namespace heirloom::cpu

#include "backend/cpu/kernels/linear/panel_template.h"

namespace heirloom::cpu::avx512_vnni {

void fill_linear_kernels(LinearKernels& table) { fill_panels(table); }

}  // namespace heirloom::cpu::avx512_vnni
