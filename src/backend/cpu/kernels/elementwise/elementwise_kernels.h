// The kernels of one tier for elementwise ops: declarations only, ISA files include this.
#pragma once

#include <cstdint>

namespace heirloom::cpu {

/// An element's result depends on that element alone: the tail of a row runs the same instructions as its body.
struct ElementwiseKernels {
  void (*add)(float* x, const float* y, std::int64_t n) noexcept;                                // x += y
  void (*swiglu)(const float* gate, const float* up, float* out, std::int64_t n) noexcept;       // silu(gate) * up; may alias
  void (*gelu_tanh)(float* x, std::int64_t n) noexcept;                                          // in place
  void (*gelu_erf)(float* x, std::int64_t n) noexcept;
  void (*add_scaled)(const float* x, float scale, float* out, std::int64_t n) noexcept;          // out += scale * x
};

#define HEIRLOOM_ELEMENTWISE_KERNELS(isa)                                                       \
  namespace isa {                                                                               \
  void add_rows(float* x, const float* y, std::int64_t n) noexcept;                             \
  void swiglu_rows(const float* gate, const float* up, float* out, std::int64_t n) noexcept;    \
  void gelu_tanh_rows(float* x, std::int64_t n) noexcept;                                       \
  void gelu_erf_rows(float* x, std::int64_t n) noexcept;                                        \
  void add_scaled_row(const float* x, float scale, float* out, std::int64_t n) noexcept;        \
  }
HEIRLOOM_ELEMENTWISE_KERNELS(scalar)
HEIRLOOM_ELEMENTWISE_KERNELS(ssse3)
HEIRLOOM_ELEMENTWISE_KERNELS(avx2)
HEIRLOOM_ELEMENTWISE_KERNELS(avx512)
#undef HEIRLOOM_ELEMENTWISE_KERNELS

}  // namespace heirloom::cpu
