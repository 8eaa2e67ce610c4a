// Quantisation of activations and SwiGLU for every SIMD tier, over the vector layer `Simd`; included like panel_template.h.
// Beyond what that header asks for, Simd provides add, div, min, max, abs, to_int (to nearest even), add_int, power_of_two(I),
// largest(F), total(I) and store_codes(p, I), which stores kLanes saturated bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/linear/linear_kernels.h"

namespace heirloom::cpu {
namespace {

void quantize_row(const float* x, std::int64_t k, ActBlock* out, std::ptrdiff_t step) {
  constexpr int kVectors = kBlock / Simd::kLanes;
  for (std::int64_t b = 0; b < k / kBlock; ++b, x += kBlock, out += step) {
    Simd::F values[kVectors];
    for (int i = 0; i < kVectors; ++i) values[i] = Simd::load_floats(x + i * Simd::kLanes);
    Simd::F most_of_lane = Simd::abs(values[0]);
    for (int i = 1; i < kVectors; ++i) most_of_lane = Simd::max(most_of_lane, Simd::abs(values[i]));
    const float most = Simd::largest(most_of_lane);
    // Below 2^-100 the reciprocal would leave float's range; such a block is zero for every purpose.
    const float inverse = most < 0x1p-100f ? 0.0f : 127.0f / most;
    std::int32_t sums[2];
    for (int half = 0; half < 2; ++half) {
      constexpr int kPerHalf = kVectors / 2;
      Simd::I sum{};
      for (int i = 0; i < kPerHalf; ++i) {
        const Simd::I codes = Simd::to_int(Simd::mul(values[half * kPerHalf + i], Simd::broadcast(inverse)));
        Simd::store_codes(out->q + (half * kPerHalf + i) * Simd::kLanes, codes);
        sum = i == 0 ? codes : Simd::add_int(sum, codes);
      }
      sums[half] = Simd::total(sum);
    }
    const std::int32_t sum = sums[0] + sums[1];
    out->scale = inverse == 0.0f ? 0.0f : most / 127.0f;
    out->scaled_sum = out->scale * static_cast<float>(sum);
    out->neg8 = -8 * sum;
    out->neg128 = -128 * sum;
    out->neg32[0] = -32 * sums[0];
    out->neg32[1] = -32 * sums[1];
    out->unused[0] = out->unused[1] = 0;
  }
}

// exp(x) within 2 ulp for x in [-87, 87], clamped outside: 2^n * p(r), r = x - n ln 2 in two parts (Cody and Waite), p of degree 6
// (the Taylor series: |r| <= ln 2 / 2, its error is below 2^-26).
inline Simd::F exp_of(Simd::F x) {
  x = Simd::min(Simd::max(x, Simd::broadcast(-87.0f)), Simd::broadcast(87.0f));
  const Simd::I n = Simd::to_int(Simd::mul(x, Simd::broadcast(1.44269504f)));
  const Simd::F nf = Simd::to_float(n);
  Simd::F r = Simd::fnma(nf, Simd::broadcast(0.693359375f), x);
  r = Simd::fnma(nf, Simd::broadcast(-2.12194440e-4f), r);
  Simd::F p = Simd::broadcast(1.0f / 720.0f);
  p = Simd::fma(p, r, Simd::broadcast(1.0f / 120.0f));
  p = Simd::fma(p, r, Simd::broadcast(1.0f / 24.0f));
  p = Simd::fma(p, r, Simd::broadcast(1.0f / 6.0f));
  p = Simd::fma(p, r, Simd::broadcast(0.5f));
  p = Simd::fma(p, r, Simd::broadcast(1.0f));
  p = Simd::fma(p, r, Simd::broadcast(1.0f));
  return Simd::mul(p, Simd::power_of_two(n));
}

inline Simd::F swiglu_of(Simd::F gate, Simd::F up) {
  const Simd::F e = exp_of(Simd::mul(gate, Simd::broadcast(-1.0f)));
  return Simd::mul(Simd::div(gate, Simd::add(Simd::broadcast(1.0f), e)), up);
}

void swiglu(const float* gate, const float* up, float* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + Simd::kLanes <= n; i += Simd::kLanes) {
    Simd::store(out + i, swiglu_of(Simd::load_floats(gate + i), Simd::load_floats(up + i)));
  }
  if (i == n) return;
  float padded[3][Simd::kLanes] = {};
  for (std::int64_t j = i; j < n; ++j) {
    padded[0][j - i] = gate[j];
    padded[1][j - i] = up[j];
  }
  Simd::store(padded[2], swiglu_of(Simd::load_floats(padded[0]), Simd::load_floats(padded[1])));
  for (std::int64_t j = i; j < n; ++j) out[j] = padded[2][j - i];
}

}  // namespace
}  // namespace heirloom::cpu
