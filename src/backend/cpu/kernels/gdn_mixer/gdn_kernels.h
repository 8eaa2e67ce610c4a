// The kernels of one tier for Gated DeltaNet: declarations only, ISA files include this.
//
// The delta rule runs in its recurrent form for prompts and for single tokens alike, so that any cut of a sequence into
// calls gives the same bits. Value columns are independent: a tile of columns stays in the first-level cache for all tokens
// of a call. With S the state before a token, d = exp(g), both products that need S are taken in one sweep,
//   kv = S^T k, qv = S^T q,   delta = beta (v - d kv),   y = (d qv + (q . k) delta) / sqrt(head_k_dim),
// and the sweep that writes S = d S + k delta^T takes the next token's products on the way: one pass a token.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heirloom::cpu {

/// A tile of columns of one value head over consecutive tokens. Strides are in floats from one token to the next.
struct GdnTile {
  float* state;                 // [head_k_dim rows, state_stride], at the tile's first column; updated in place
  std::ptrdiff_t state_stride;
  int head_k_dim, columns, tokens;
  const float *q, *k;           // [tokens, head_k_dim], L2-normalised
  std::ptrdiff_t qk_stride;
  float* v;                     // [tokens, columns]: v in, y out
  std::ptrdiff_t v_stride;
  const float *decay, *beta;    // [tokens]: exp(g), write strength
  std::ptrdiff_t gate_stride;
  const float* qk_dot;          // [tokens]: q . k
  std::ptrdiff_t dot_stride;
  float scale;                  // head_k_dim^-0.5
};

struct GdnKernels {
  /// Causal 4-tap convolution and SiLU of n channels over `tokens` rows.
  ///   w [n, 4], state [4 rows], x [tokens rows], out [tokens rows]; rows of state and x are `stride` floats apart.
  void (*conv)(const float* w, const float* state, const float* x, std::ptrdiff_t stride, int n, int tokens, float* out,
               std::ptrdiff_t out_stride) noexcept;
  /// x = x / sqrt(sum(x^2) + 1e-6)
  void (*l2_norm)(float* x, int n) noexcept;
  float (*dot)(const float* a, const float* b, int n) noexcept;
  /// g = neg_exp_a * softplus(a + dt_bias), decay = exp(g), beta = sigmoid(b), n heads
  void (*gates)(const float* a, const float* b, const float* dt_bias, const float* neg_exp_a, int n, float* g, float* decay,
                float* beta) noexcept;
  void (*delta)(const GdnTile& tile) noexcept;
  /// out = y / sqrt(mean(y^2) + eps) * weight * silu(z); out may be z
  void (*gated_norm)(const float* y, const float* z, const float* weight, float eps, int n, float* out) noexcept;
  /// Columns of a tile for long prompts: what `delta` takes at once. 16 KiB of state at head_k_dim 128 (64 columns: 32 KiB,
  /// which CPUs with AVX-512 load from the second level as fast as they can use it).
  int tile_columns;
};

#define HEIRLOOM_GDN_KERNELS(isa)                                                                                            \
  namespace isa {                                                                                                            \
  void gdn_conv(const float* w, const float* state, const float* x, std::ptrdiff_t stride, int n, int tokens, float* out,    \
                std::ptrdiff_t out_stride) noexcept;                                                                         \
  void gdn_l2_norm(float* x, int n) noexcept;                                                                                \
  float gdn_dot(const float* a, const float* b, int n) noexcept;                                                             \
  void gdn_gates(const float* a, const float* b, const float* dt_bias, const float* neg_exp_a, int n, float* g, float* decay, \
                 float* beta) noexcept;                                                                                      \
  void gdn_delta(const GdnTile& tile) noexcept;                                                                              \
  void gdn_gated_norm(const float* y, const float* z, const float* weight, float eps, int n, float* out) noexcept;           \
  }
HEIRLOOM_GDN_KERNELS(scalar)
HEIRLOOM_GDN_KERNELS(ssse3)
HEIRLOOM_GDN_KERNELS(avx2)
HEIRLOOM_GDN_KERNELS(avx512)
#undef HEIRLOOM_GDN_KERNELS

}  // namespace heirloom::cpu
