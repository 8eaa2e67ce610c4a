// The kernels of one tier for softmax attention: declarations only, ISA files include this.
//
// Keys come in blocks of kAttentionBlock tokens at fixed absolute positions. A query vector's result over one block
// (largest score, sum of exponentials, weighted sum of values) has an order of operations that depends on the block's valid
// tokens alone, and blocks are merged in ascending order. So a row gives the same bits in a prompt of any cut, in a batch
// and alone, on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heirloom::cpu {

inline constexpr int kAttentionBlock = 256;  // tokens: 4 KV pages

/// How keys and values are stored.
enum class KvFormat : std::uint8_t { f32, f16, bf16 };
inline constexpr int kNumKvFormats = 3;

/// A query vector's result over some blocks: sum over tokens of exp(scale (score - largest)) and of that times the value.
struct Partial {
  float largest;
  float total;
};

struct AttentionKernels {
  /// x -> RMS norm times weight -> `normed` -> rotate-half of the first 2 * half dims -> out. d dims; normed may be out.
  void (*norm_rope)(const float* x, const float* weight, float eps, int d, const float* cos, const float* sin, int half,
                    float* normed, float* out) noexcept;
  /// out = the first 2 * half dims rotated, the others copied; out may be x.
  void (*rope)(const float* x, const float* cos, const float* sin, int half, int d, float* out) noexcept;
  /// n floats in the cache's format and back.
  void (*pack[kNumKvFormats])(const float* x, int n, void* out) noexcept;
  void (*unpack[kNumKvFormats])(const void* x, int n, float* out) noexcept;
  /// scores[r, t] = q[r] . keys[t] for rows r and tokens t. `tokens` may be rounded up to a multiple of 4 where that many keys
  /// exist. q rows are d apart, keys d apart (both multiples of 16 dims), scores score_stride apart.
  void (*score[kNumKvFormats])(const float* q, int rows, const void* keys, int tokens, int d, float* scores,
                               std::ptrdiff_t score_stride) noexcept;
  /// The same with keys [d, key_stride] transposed, for keys that many queries meet; tokens may be rounded up to a multiple
  /// of 16 where key_stride and score_stride have room. d need not be a multiple of anything; q rows are q_stride apart.
  void (*score_transposed)(const float* q, std::ptrdiff_t q_stride, int rows, const float* keys, std::ptrdiff_t key_stride,
                           int tokens, int d, float* scores, std::ptrdiff_t score_stride) noexcept;
  /// In place: scores -> exp(scale (score - largest)) for the first `valid` (>= 1), zeros up to `padded`.
  Partial (*soften)(float* scores, int valid, int padded, float scale) noexcept;
  /// sums[r] (+)= sum over t of weights[r, t] * values[t]; `add` false starts from zero. values and sums rows are d apart.
  void (*weigh[kNumKvFormats])(const float* weights, std::ptrdiff_t weight_stride, int rows, const void* values, int tokens,
                               int d, float* sums, bool add) noexcept;
  /// total = total and block merged; sums likewise.
  void (*merge)(Partial* total, float* total_sums, const Partial* block, const float* block_sums, int d, float scale) noexcept;
  /// out = sums / total * sigmoid(gate); gate may be null (factor 1).
  void (*finish)(const float* sums, float total, const float* gate, int d, float* out) noexcept;
};

#define HEIRLOOM_ATTENTION_KERNELS(isa)                                                                                      \
  namespace isa {                                                                                                            \
  void attention_norm_rope(const float* x, const float* weight, float eps, int d, const float* cos, const float* sin,        \
                           int half, float* normed, float* out) noexcept;                                                    \
  void attention_rope(const float* x, const float* cos, const float* sin, int half, int d, float* out) noexcept;             \
  void pack_f32(const float* x, int n, void* out) noexcept;                                                                  \
  void pack_f16(const float* x, int n, void* out) noexcept;                                                                  \
  void pack_bf16(const float* x, int n, void* out) noexcept;                                                                 \
  void unpack_f32(const void* x, int n, float* out) noexcept;                                                                \
  void unpack_f16(const void* x, int n, float* out) noexcept;                                                                \
  void unpack_bf16(const void* x, int n, float* out) noexcept;                                                               \
  void score_f32(const float* q, int rows, const void* keys, int tokens, int d, float* scores, std::ptrdiff_t stride) noexcept;  \
  void score_f16(const float* q, int rows, const void* keys, int tokens, int d, float* scores, std::ptrdiff_t stride) noexcept;  \
  void score_bf16(const float* q, int rows, const void* keys, int tokens, int d, float* scores, std::ptrdiff_t stride) noexcept; \
  void score_transposed(const float* q, std::ptrdiff_t q_stride, int rows, const float* keys, std::ptrdiff_t key_stride,      \
                        int tokens, int d, float* scores, std::ptrdiff_t score_stride) noexcept;                             \
  Partial attention_soften(float* scores, int valid, int padded, float scale) noexcept;                                      \
  void weigh_f32(const float* w, std::ptrdiff_t stride, int rows, const void* values, int tokens, int d, float* sums, bool add) noexcept;  \
  void weigh_f16(const float* w, std::ptrdiff_t stride, int rows, const void* values, int tokens, int d, float* sums, bool add) noexcept;  \
  void weigh_bf16(const float* w, std::ptrdiff_t stride, int rows, const void* values, int tokens, int d, float* sums, bool add) noexcept; \
  void attention_merge(Partial* total, float* total_sums, const Partial* block, const float* block_sums, int d, float scale) noexcept; \
  void attention_finish(const float* sums, float total, const float* gate, int d, float* out) noexcept;                      \
  }
HEIRLOOM_ATTENTION_KERNELS(scalar)
HEIRLOOM_ATTENTION_KERNELS(ssse3)
HEIRLOOM_ATTENTION_KERNELS(avx2)
HEIRLOOM_ATTENTION_KERNELS(avx512)
#undef HEIRLOOM_ATTENTION_KERNELS

}  // namespace heirloom::cpu
