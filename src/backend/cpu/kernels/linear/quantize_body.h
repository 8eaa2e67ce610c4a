// Quantisation of activations for every SIMD tier, over the vocabulary of simd/simd_*.h and codes_*.h; of the latter it uses
// to_codes (floats to 32-bit integers, nearest even), add_codes, total and store_bytes (saturated).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/linear/linear_kernels.h"

namespace heirloom::cpu::HEIRLOOM_ISA {
namespace {

void quantize_row(const float* x, std::int64_t k, ActBlock* out, std::ptrdiff_t step) {
  constexpr int kVectors = kBlock / kLanes;
  for (std::int64_t b = 0; b < k / kBlock; ++b, x += kBlock, out += step) {
    Vec values[kVectors];
    for (int i = 0; i < kVectors; ++i) values[i] = load(x + i * kLanes);
    Vec most_of_lane = abs(values[0]);
    for (int i = 1; i < kVectors; ++i) most_of_lane = max(most_of_lane, abs(values[i]));
    const float most = largest(most_of_lane);
    // Below 2^-100 the reciprocal would leave float's range; such a block is zero for every purpose.
    const float inverse = most < 0x1p-100f ? 0.0f : 127.0f / most;
    std::int32_t sums[2];
    for (int half = 0; half < 2; ++half) {
      constexpr int kPerHalf = kVectors / 2;
      Codes sum{};
      for (int i = 0; i < kPerHalf; ++i) {
        const Codes codes = to_codes(mul(values[half * kPerHalf + i], set(inverse)));
        store_bytes(out->q + (half * kPerHalf + i) * kLanes, codes);
        sum = i == 0 ? codes : add_codes(sum, codes);
      }
      sums[half] = total(sum);
    }
    const std::int32_t sum = sums[0] + sums[1];
    out->scale = inverse == 0.0f ? 0.0f : most / 127.0f;
    out->scaled_sum = out->scale * static_cast<float>(sum);
    out->neg8 = -8 * sum;
    out->neg128 = -128 * sum;
    out->neg32[0] = -32 * sums[0];
    out->neg32[1] = -32 * sums[1];
    out->pair_offset[0] = out->pair_offset[1] = 0;
  }
}

}  // namespace
}  // namespace heirloom::cpu::HEIRLOOM_ISA
