#include <immintrin.h>

#include "backend/cpu/kernels/compute_probe/compute_probe.h"

namespace heirloom::cpu::ssse3 {

std::uint64_t compute_probe(std::uint64_t rounds) {
  constexpr int kChains = 6;  // enough independent sums to hide the latency
  __m128i sums[kChains], ones = _mm_set1_epi16(1), x = _mm_set1_epi8(3), w = _mm_set1_epi8(5);
  for (int c = 0; c < kChains; ++c) sums[c] = _mm_set1_epi32(c);
  for (std::uint64_t r = 0; r < rounds; ++r) {
    for (int c = 0; c < kChains; ++c) {
      asm volatile("" : "+x"(x));  // as if loaded anew: the product is not hoisted out of the loop
      sums[c] = _mm_add_epi32(sums[c], _mm_madd_epi16(_mm_maddubs_epi16(x, w), ones));
    }
  }
  for (int c = 0; c < kChains; ++c) asm volatile("" : : "x"(sums[c]));
  return rounds * kChains * 16 * 2;
}

}  // namespace heirloom::cpu::ssse3
