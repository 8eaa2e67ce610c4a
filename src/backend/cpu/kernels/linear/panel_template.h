// The panel kernels of every SIMD tier, written once over a vector layer. A tier's file defines `struct Simd` in an unnamed
// namespace and then includes this header, whose code lies in an unnamed namespace too: each tier gets copies of its own
// and no symbol is shared between files with different instruction sets.
//
// Simd provides, for vectors of kLanes rows (I: 4 bytes a row; F: a float a row):
//   kLanes, kMaxRows (rows of x that one pass keeps in registers), kFloatRows (the same for float types)
//   I load(p), low_nibbles(v), high_nibbles(v), bits<shift, mask>(v): (v >> shift) & mask per byte, shift may be negative,
//   either(a, b), F half_to_float(p), load_floats(p), brain_to_float(p), unsigned_bytes(p), signed_bytes(p), broadcast(f),
//   fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, mul, to_float(I), store(p, F), zero()
//   Dot<kMaxCode>: exact sums of unsigned codes times signed x, four k's at a time: start(offset), add(codes, x4), sum().
//   kMaxCode 255 means codes biased by 128; start takes the offset that cancels the bias, or not at all.
#pragma once

#include <cstddef>
#include <cstdint>

#include <xmmintrin.h>

#include "backend/cpu/kernels/linear/linear_kernels.h"

namespace heirloom::cpu {
namespace {

constexpr int kParts = kPanelRows / Simd::kLanes;  // vectors that make up the 16 rows of a panel

inline const ActBlock* record(const std::byte* x, std::ptrdiff_t offset, int row) {
  return reinterpret_cast<const ActBlock*>(x + offset) + row;
}

template <int kMaxCode, int kGroups>
inline Simd::I dot_codes(const Simd::I* codes, const std::int8_t* x, std::int32_t offset) {
  typename Simd::template Dot<kMaxCode> dot;
  dot.start(offset);
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) dot.add(codes[g], x + 4 * g);
  return dot.sum();
}

inline void split_nibbles(const std::byte* nibbles, int part, Simd::I* codes) {
#pragma GCC unroll 4
  for (int h = 0; h < 4; ++h) {
    const Simd::I v = Simd::load(nibbles + h * 64 + part * Simd::kLanes * 4);
    codes[h] = Simd::low_nibbles(v);
    codes[h + 4] = Simd::high_nibbles(v);
  }
}

// acc += (scale * x.scale) * dot
inline Simd::F add_block(Simd::F acc, Simd::F scale, const ActBlock& x, Simd::F dot) {
  return Simd::fma(Simd::mul(scale, Simd::broadcast(x.scale)), dot, acc);
}

// Each format: accumulate() adds one block of all 16 rows to M rows' sums.

struct FormatQ4_0 {
  static constexpr PackedType kType = PackedType::q4_0;
  template <int M>
  static inline void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t, Simd::F (&acc)[M][kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      Simd::I codes[8];
      split_nibbles(block + 32, p, codes);
      const Simd::F scale = Simd::half_to_float(block + p * Simd::kLanes * 2);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const ActBlock& act = *record(x, 0, m);
        acc[m][p] = add_block(acc[m][p], scale, act, Simd::to_float(dot_codes<15, 8>(codes, act.q, act.neg8)));
      }
    }
  }
};

template <int M>
inline void accumulate_bytes(const std::byte* bytes, int part, Simd::F scale, const std::byte* x, Simd::F (&acc)[M][kParts]) {
  Simd::I codes[8];
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) codes[g] = Simd::load(bytes + g * 64 + part * Simd::kLanes * 4);
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    const ActBlock& act = *record(x, 0, m);
    acc[m][part] = add_block(acc[m][part], scale, act, Simd::to_float(dot_codes<255, 8>(codes, act.q, act.neg128)));
  }
}

struct FormatQ8_0 {
  static constexpr PackedType kType = PackedType::q8_0;
  template <int M>
  static inline void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t, Simd::F (&acc)[M][kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      accumulate_bytes<M>(block + 32, p, Simd::half_to_float(block + p * Simd::kLanes * 2), x, acc);
    }
  }
};

struct FormatQ8_X {
  static constexpr PackedType kType = PackedType::q8_x;
  template <int M>
  static inline void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t, Simd::F (&acc)[M][kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      accumulate_bytes<M>(block + 128, p, Simd::load_floats(block + p * Simd::kLanes * 4), x, acc);
      const Simd::F min = Simd::load_floats(block + 64 + p * Simd::kLanes * 4);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) acc[m][p] = Simd::fma(min, Simd::broadcast(record(x, 0, m)->scaled_sum), acc[m][p]);
    }
  }
};

template <int kGroup>
inline void add_fifth_bit(Simd::I bits, Simd::I* codes) {
  codes[kGroup] = Simd::either(codes[kGroup], Simd::template bits<kGroup - 4, 0x10>(bits));
  if constexpr (kGroup < 7) add_fifth_bit<kGroup + 1>(bits, codes);
}

template <bool kFive>
struct FormatQ45_K {
  static constexpr PackedType kType = kFive ? PackedType::q5_k : PackedType::q4_k;
  template <int M>
  static inline void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t x_step, Simd::F (&acc)[M][kParts]) {
    constexpr int kSubBytes = kFive ? kSubBlockBytesQ5K : kSubBlockBytesQ4K;
    Simd::F d[kParts], dmin[kParts];
    for (int p = 0; p < kParts; ++p) {
      d[p] = Simd::half_to_float(block + p * Simd::kLanes * 2);
      dmin[p] = Simd::half_to_float(block + 32 + p * Simd::kLanes * 2);
    }
    const std::byte* sub = block + kHeadBytesQ4K;
    for (int g = 0; g < 8; ++g, sub += kSubBytes, x += x_step) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        Simd::I codes[8];
        split_nibbles(sub + 32, p, codes);
        if constexpr (kFive) add_fifth_bit<0>(Simd::load(sub + 288 + p * Simd::kLanes * 4), codes);
        const Simd::F scale = Simd::mul(d[p], Simd::unsigned_bytes(sub + p * Simd::kLanes));
        const Simd::F min = Simd::mul(dmin[p], Simd::unsigned_bytes(sub + 16 + p * Simd::kLanes));
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const ActBlock& act = *record(x, 0, m);
          acc[m][p] = add_block(acc[m][p], scale, act, Simd::to_float(dot_codes<kFive ? 31 : 15, 8>(codes, act.q, 0)));
          acc[m][p] = Simd::fnma(min, Simd::broadcast(act.scaled_sum), acc[m][p]);
        }
      }
    }
  }
};

template <int kGroup>
inline void add_top_bits(const Simd::I* tops, Simd::I* codes) {
  codes[kGroup] = Simd::either(codes[kGroup], Simd::template bits<2 * (kGroup % 4) - 4, 0x30>(tops[kGroup / 4]));
  if constexpr (kGroup < 7) add_top_bits<kGroup + 1>(tops, codes);
}

struct FormatQ6_K {
  static constexpr PackedType kType = PackedType::q6_k;
  template <int M>
  static inline void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t x_step, Simd::F (&acc)[M][kParts]) {
    Simd::F d[kParts];
    for (int p = 0; p < kParts; ++p) d[p] = Simd::half_to_float(block + p * Simd::kLanes * 2);
    const std::byte* sub = block + kHeadBytesQ6K;
    for (int g = 0; g < 8; ++g, sub += kSubBlockBytesQ6K, x += x_step) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        Simd::I codes[8];
        split_nibbles(sub + 32, p, codes);
        const Simd::I tops[2] = {Simd::load(sub + 288 + p * Simd::kLanes * 4), Simd::load(sub + 352 + p * Simd::kLanes * 4)};
        add_top_bits<0>(tops, codes);
        const Simd::F scale0 = Simd::signed_bytes(sub + p * Simd::kLanes);
        const Simd::F scale1 = Simd::signed_bytes(sub + 16 + p * Simd::kLanes);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const ActBlock& act = *record(x, 0, m);
          // Products and sum below 2^24: exact, so the order does not matter.
          const Simd::F first = Simd::mul(Simd::to_float(dot_codes<63, 4>(codes, act.q, act.neg32[0])), scale0);
          const Simd::F both = Simd::fma(Simd::to_float(dot_codes<63, 4>(codes + 4, act.q + 16, act.neg32[1])), scale1, first);
          acc[m][p] = add_block(acc[m][p], d[p], act, both);
        }
      }
    }
  }
};

// Weights stream from memory once: ask for them kPrefetchBytes ahead, into L2. Measured on a Xeon with AVX-512 for one row of
// q4_0: 9.2 GB/s a core without (16 line fill buffers bound it), 12.6 with 4096 bytes and T1; 2048 and 8192 bytes and T0 give
// less, NTA is worse than nothing.
constexpr std::ptrdiff_t kPrefetchBytes = 4096;

template <int kBytes>
inline void prefetch(const std::byte* p, const std::byte* end, const std::byte* next) {
  const std::ptrdiff_t past_end = p + kPrefetchBytes - end;
  const std::byte* ahead = past_end < 0 ? p + kPrefetchBytes : next + past_end;
#pragma GCC unroll 64
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(ahead) + i, _MM_HINT_T1);
}

template <class Format, int M>
void integer_rows(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step,
                  float* out, std::ptrdiff_t out_stride) {
  constexpr int kType = static_cast<int>(Format::kType);
  constexpr int kRecords = kBlockOf[kType] / kBlock;
  Simd::F acc[M][kParts];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) acc[m][p] = Simd::zero();
  }
  const std::byte* end = panel + k / kBlockOf[kType] * kBlockBytesOf[kType];
  for (; panel != end; panel += kBlockBytesOf[kType], x += kRecords * x_step) {
    prefetch<kBlockBytesOf[kType]>(panel, end, next);
    Format::template accumulate<M>(panel, x, x_step, acc);
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) Simd::store(out + m * out_stride + p * Simd::kLanes, acc[m][p]);
  }
}

struct FormatF32 {
  static constexpr int kBytes = 4;
  static inline Simd::F load(const std::byte* p) { return Simd::load_floats(p); }
};
struct FormatF16 {
  static constexpr int kBytes = 2;
  static inline Simd::F load(const std::byte* p) { return Simd::half_to_float(p); }
};
struct FormatBF16 {
  static constexpr int kBytes = 2;
  static inline Simd::F load(const std::byte* p) { return Simd::brain_to_float(p); }
};

template <class Format, int M>
void float_rows(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step,
                float* out, std::ptrdiff_t out_stride) {
  Simd::F acc[M][kParts];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) acc[m][p] = Simd::zero();
  }
  constexpr int kStepBytes = kPanelRows * Format::kBytes;
  const std::byte* end = panel + k * kStepBytes;
  for (; panel != end; panel += kStepBytes, x += x_step) {
    prefetch<kStepBytes>(panel, end, next);
    Simd::F weights[kParts];
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) weights[p] = Format::load(panel + p * Simd::kLanes * Format::kBytes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Simd::F value = Simd::broadcast(reinterpret_cast<const float*>(x)[m]);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) acc[m][p] = Simd::fma(value, weights[p], acc[m][p]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) Simd::store(out + m * out_stride + p * Simd::kLanes, acc[m][p]);
  }
}

// Cuts the rows of a tile into passes of M, M / 2, ... 1 rows.
template <class Format, int M>
inline void integer_passes(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step, int rows, float* out,
                           std::ptrdiff_t out_stride) {
  for (; rows >= M; rows -= M, x += M * static_cast<std::ptrdiff_t>(sizeof(ActBlock)), out += M * out_stride) {
    integer_rows<Format, M>(panel, next, k, x, x_step, out, out_stride);
  }
  if constexpr (M > 1) {
    if (rows != 0) integer_passes<Format, M / 2>(panel, next, k, x, x_step, rows, out, out_stride);
  }
}
template <class Format, int M>
inline void float_passes(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step, int rows, float* out,
                         std::ptrdiff_t out_stride) {
  for (; rows >= M; rows -= M, x += M * 4, out += M * out_stride) float_rows<Format, M>(panel, next, k, x, x_step, out, out_stride);
  if constexpr (M > 1) {
    if (rows != 0) float_passes<Format, M / 2>(panel, next, k, x, x_step, rows, out, out_stride);
  }
}

template <class Format>
void integer_panel(const std::byte* panel, const std::byte* next, std::int64_t k, const void* x, std::ptrdiff_t x_step, int rows, float* out,
                   std::ptrdiff_t out_stride) {
  integer_passes<Format, Simd::kMaxRows>(panel, next, k, static_cast<const std::byte*>(x), x_step, rows, out, out_stride);
}
template <class Format>
void float_panel(const std::byte* panel, const std::byte* next, std::int64_t k, const void* x, std::ptrdiff_t x_step, int rows, float* out,
                 std::ptrdiff_t out_stride) {
  float_passes<Format, Simd::kFloatRows>(panel, next, k, static_cast<const std::byte*>(x), x_step, rows, out, out_stride);
}

void fill_panels(LinearKernels& table) {
  table.panel[static_cast<int>(PackedType::q4_0)] = integer_panel<FormatQ4_0>;
  table.panel[static_cast<int>(PackedType::q8_0)] = integer_panel<FormatQ8_0>;
  table.panel[static_cast<int>(PackedType::q8_x)] = integer_panel<FormatQ8_X>;
  table.panel[static_cast<int>(PackedType::q4_k)] = integer_panel<FormatQ45_K<false>>;
  table.panel[static_cast<int>(PackedType::q5_k)] = integer_panel<FormatQ45_K<true>>;
  table.panel[static_cast<int>(PackedType::q6_k)] = integer_panel<FormatQ6_K>;
  table.panel[static_cast<int>(PackedType::f32)] = float_panel<FormatF32>;
  table.panel[static_cast<int>(PackedType::f16)] = float_panel<FormatF16>;
  table.panel[static_cast<int>(PackedType::bf16)] = float_panel<FormatBF16>;
}

}  // namespace
}  // namespace heirloom::cpu
