// The avx512_vnni tier: vpdpbusd multiplies 64 unsigned codes by 64 signed activations and adds them by fours, exactly
// (Intel SDM vol. 2, VPDPBUSD; the form without saturation).
// clang-format off: the bodies are written in the vocabulary that comes first.
#include "backend/cpu/kernels/linear/codes_avx512.h"

namespace heirloom::cpu::avx512 {
namespace {

template <int kMaxCode>
struct Dot {
  static constexpr int kTogether = 8;  // chains of latency 5, two steps a cycle
  Codes acc;
  HEIRLOOM_INLINE void start(std::int32_t offset) { acc = _mm512_set1_epi32(offset); }
  /// By hand, because GCC 12 loads what is broadcast with an instruction and a register of its own: 387 instead of 428 GOP/s with 8
  /// rows of q8_0.
  HEIRLOOM_INLINE void add(Codes codes, const std::int8_t* x) {
    struct Four {
      std::int8_t values[4];
    };
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*reinterpret_cast<const Four*>(x)));
  }
  HEIRLOOM_INLINE Codes sum() const { return acc; }
};

}  // namespace
}  // namespace heirloom::cpu::avx512

#include "backend/cpu/kernels/linear/panel_body.h"

namespace heirloom::cpu::avx512_vnni {

void fill_linear_kernels(LinearKernels& table) { avx512::fill_integer_panels(table); }

}  // namespace heirloom::cpu::avx512_vnni
