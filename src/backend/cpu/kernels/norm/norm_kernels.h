// The kernels of one tier for row norms: declarations only, ISA files include this.
#pragma once

#include <cstdint>

namespace heirloom::cpu {

/// The sums of a row are taken in an order that depends on n alone. `out` may be `x`.
struct NormKernels {
  /// out = x * weight / sqrt(mean(x^2) + eps)
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* out) noexcept;
  /// residual += delta, then rms_norm of it into out
  void (*add_rms_norm)(float* residual, const float* delta, const float* weight, float eps, std::int64_t n,
                       float* out) noexcept;
  /// out = (x - mean) / sqrt(variance + eps) * weight + bias
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::int64_t n, float* out) noexcept;
};

#define HEIRLOOM_NORM_KERNELS(isa)                                                                                       \
  namespace isa {                                                                                                        \
  void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* out) noexcept;                    \
  void add_rms_norm(float* residual, const float* delta, const float* weight, float eps, std::int64_t n, float* out) noexcept; \
  void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t n, float* out) noexcept; \
  }
HEIRLOOM_NORM_KERNELS(scalar)
HEIRLOOM_NORM_KERNELS(ssse3)
HEIRLOOM_NORM_KERNELS(avx2)
HEIRLOOM_NORM_KERNELS(avx512)
#undef HEIRLOOM_NORM_KERNELS

}  // namespace heirloom::cpu
