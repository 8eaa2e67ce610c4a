#include <immintrin.h>

#include "backend/cpu/kernels/compute_probe/compute_probe.h"

namespace heirloom::cpu::avx512 {

std::uint64_t compute_probe(std::uint64_t rounds) {
  constexpr int kChains = 6;  // enough independent sums to hide the latency
  __m512i sums[kChains], ones = _mm512_set1_epi16(1), x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(5);
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_set1_epi32(c);
  for (std::uint64_t r = 0; r < rounds; ++r) {
    for (int c = 0; c < kChains; ++c) {
      asm volatile("" : "+v"(x));  // as if loaded anew: the product is not hoisted out of the loop
      sums[c] = _mm512_add_epi32(sums[c], _mm512_madd_epi16(_mm512_maddubs_epi16(x, w), ones));
    }
  }
  for (int c = 0; c < kChains; ++c) asm volatile("" : : "v"(sums[c]));
  return rounds * kChains * 64 * 2;
}

}  // namespace heirloom::cpu::avx512
