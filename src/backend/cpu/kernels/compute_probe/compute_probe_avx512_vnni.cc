#include <immintrin.h>

#include "backend/cpu/kernels/compute_probe/compute_probe.h"

namespace heirloom::cpu::avx512_vnni {

std::uint64_t compute_probe(std::uint64_t rounds) {
  constexpr int kChains = 12;  // vpdpbusd has a latency of 5 and two may start in a cycle
  __m512i sums[kChains], x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(5);
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_set1_epi32(c);
  for (std::uint64_t r = 0; r < rounds; ++r) {
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbusd_epi32(sums[c], x, w);
    asm volatile("" : "+v"(x));
  }
  for (int c = 0; c < kChains; ++c) asm volatile("" : : "v"(sums[c]));
  return rounds * kChains * 64 * 2;
}

}  // namespace heirloom::cpu::avx512_vnni
