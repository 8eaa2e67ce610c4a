// The panel kernels of every SIMD tier, written once over the vocabulary of simd/simd_*.h (Vec, madd, ...) and the integer
// part of it in codes_*.h. A tier's file includes one of each, then this body.
//
// codes_*.h provide, for vectors of kLanes rows with 4 bytes a row:
//   Codes, load_codes(p), low_nibbles(v), high_nibbles(v), bits<shift, mask>(v): (v >> shift) & mask per byte, shift may be
//   negative, words_right<shift>(v) of 16-bit words, either(a, b) and differ(a, b): or, exclusive or, to_float(v),
//   load_scales(p) (halves), unsigned_bytes(p), signed_bytes(p) (kLanes bytes to floats),
//   kMaxRows and kFloatRows: the rows of x that one pass takes, for integer and for float types,
//   Dot<kMaxCode>: exact sums of unsigned codes times signed x, four k's at a time: start(offset), add(codes, x4), sum().
//   kMaxCode 255 means codes biased by 128; start takes the offset that cancels the bias, or does without.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/linear/linear_kernels.h"

namespace heirloom::cpu::HEIRLOOM_ISA {
namespace {

constexpr int kParts = kPanelRows / kLanes;  // vectors that make up the 16 rows of a panel

HEIRLOOM_INLINE Vec load_floats(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }

HEIRLOOM_INLINE const ActBlock* record(const std::byte* x, std::ptrdiff_t offset, int row) {
  return reinterpret_cast<const ActBlock*>(x + offset) + row;
}

template <int kMaxCode, int kGroups>
HEIRLOOM_INLINE Codes dot_codes(const Codes* codes, const std::int8_t* x, std::int32_t offset) {
  Dot<kMaxCode> dot;
  dot.start(offset);
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) dot.add(codes[g], x + 4 * g);
  return dot.sum();
}

/// One block's products with M rows: use(m, record of row m, sum as floats). Dot::kTogether rows take each step side by side, so that
/// the latencies of their chains overlap (a chain alone waits 40 cycles for its eight products).
template <int kMaxCode, int M, typename Offset, typename Use>
HEIRLOOM_INLINE void dot_rows(const Codes* codes, const std::byte* x, const Offset& offset, const Use& use) {
  constexpr int kTogether = M < Dot<kMaxCode>::kTogether ? M : Dot<kMaxCode>::kTogether;
#pragma GCC unroll 16
  for (int m = 0; m < M; m += kTogether) {
    const ActBlock* rows = record(x, 0, m);
    Dot<kMaxCode> dots[kTogether];
#pragma GCC unroll 16
    for (int r = 0; r < kTogether; ++r) dots[r].start(offset(rows[r]));
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 16
      for (int r = 0; r < kTogether; ++r) dots[r].add(codes[g], rows[r].q + 4 * g);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTogether; ++r) use(m + r, rows[r], to_float(dots[r].sum()));
  }
}

HEIRLOOM_INLINE void split_nibbles(const std::byte* nibbles, int part, Codes* codes) {
#pragma GCC unroll 4
  for (int h = 0; h < 4; ++h) {
    const Codes v = load_codes(nibbles + h * 64 + part * kLanes * 4);
    codes[h] = low_nibbles(v);
    codes[h + 4] = high_nibbles(v);
  }
}

// acc += (scale * x.scale) * dot
HEIRLOOM_INLINE Vec add_block(Vec acc, Vec scale, const ActBlock& x, Vec dot) {
  return madd(mul(scale, set(x.scale)), dot, acc);
}

// Weights stream from memory once: ask for them early, into L2, across the end of a panel into what is read next, and shortly
// before their use into L1. Measured on a Xeon with AVX-512 for one row of q4_0: 9.2 GB/s a core without (16 line fill buffers
// bound it), 12.6 with 4096 bytes and T1; 2048 bytes give less, NTA is worse than nothing. Requests must lie between products: a
// super-block's 37 to 53 lines at once took all fill buffers and stalled the loads behind them (ssse3, q4_k: 8.5 GB/s a core, by
// pieces 11.9; avx512_vnni 13.7 and 14.9). The step into L1 gives 2 to 8 % (ssse3: one row, avx512_vnni: four); 128 to 512 bytes
// are alike.
class Ahead {
 public:
  HEIRLOOM_INLINE Ahead(const std::byte* end, const std::byte* next) : end_(end), next_(next) {}
  /// Part `part` of kOf of kBytes bytes that lie ahead of p: whole lines.
  template <int kBytes, int kOf = 1>
  HEIRLOOM_INLINE void fetch(const std::byte* p, int part = 0) const {
    const std::ptrdiff_t past_end = p + kBytesToL2 - end_;
    const std::byte* to_l2 = past_end < 0 ? p + kBytesToL2 : next_ + past_end;
    constexpr int kLines = (kBytes + 63) / 64;
#pragma GCC unroll 64
    for (int i = kLines * part / kOf; i < kLines * (part + 1) / kOf; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(to_l2) + i * 64, _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(p) + kBytesToL1 + i * 64, _MM_HINT_T0);
    }
  }

 private:
  static constexpr std::ptrdiff_t kBytesToL2 = 4096, kBytesToL1 = 384;
  const std::byte* end_;
  const std::byte* next_;
};

// Each format: accumulate() adds one block of all 16 rows to M rows' sums, and prefetches as many bytes.

struct FormatQ4_0 {
  static constexpr PackedType kType = PackedType::q4_0;
  template <int M>
  static HEIRLOOM_INLINE void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t, Ahead ahead, Vec (&acc)[M][kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      ahead.fetch<kBlockBytesOf[static_cast<int>(kType)], kParts>(block, p);
      Codes codes[8];
      split_nibbles(block + 32, p, codes);
      const Vec scale = load_scales(block + p * kLanes * 2);
      dot_rows<15, M>(codes, x, [](const ActBlock& act) { return act.neg8; },
                      [&](int m, const ActBlock& act, Vec dot) { acc[m][p] = add_block(acc[m][p], scale, act, dot); });
    }
  }
};

template <int M>
HEIRLOOM_INLINE void accumulate_bytes(const std::byte* bytes, int part, Vec scale, const std::byte* x, Vec (&acc)[M][kParts]) {
  Codes codes[8];
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) codes[g] = load_codes(bytes + g * 64 + part * kLanes * 4);
  dot_rows<255, M>(codes, x, [](const ActBlock& act) { return act.neg128; },
                   [&](int m, const ActBlock& act, Vec dot) { acc[m][part] = add_block(acc[m][part], scale, act, dot); });
}

struct FormatQ8_0 {
  static constexpr PackedType kType = PackedType::q8_0;
  template <int M>
  static HEIRLOOM_INLINE void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t, Ahead ahead, Vec (&acc)[M][kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      ahead.fetch<kBlockBytesOf[static_cast<int>(kType)], kParts>(block, p);
      accumulate_bytes<M>(block + 32, p, load_scales(block + p * kLanes * 2), x, acc);
    }
  }
};

struct FormatQ8_X {
  static constexpr PackedType kType = PackedType::q8_x;
  template <int M>
  static HEIRLOOM_INLINE void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t, Ahead ahead, Vec (&acc)[M][kParts]) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      ahead.fetch<kBlockBytesOf[static_cast<int>(kType)], kParts>(block, p);
      accumulate_bytes<M>(block + 128, p, load_floats(block + p * kLanes * 4), x, acc);
      const Vec min = load_floats(block + 64 + p * kLanes * 4);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) acc[m][p] = madd(min, set(record(x, 0, m)->scaled_sum), acc[m][p]);
    }
  }
};

template <int kGroup>
HEIRLOOM_INLINE void add_fifth_bit(Codes fifths, Codes* codes) {
  codes[kGroup] = either(codes[kGroup], bits<kGroup - 4, 0x10>(fifths));
  if constexpr (kGroup < 7) add_fifth_bit<kGroup + 1>(fifths, codes);
}

template <bool kFive>
struct FormatQ45_K {
  static constexpr PackedType kType = kFive ? PackedType::q5_k : PackedType::q4_k;
  template <int M>
  static HEIRLOOM_INLINE void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t x_step, Ahead ahead,
                                         Vec (&acc)[M][kParts]) {
    constexpr int kSubBytes = kFive ? kSubBlockBytesQ5K : kSubBlockBytesQ4K;
    Vec d[kParts], dmin[kParts];
    for (int p = 0; p < kParts; ++p) {
      d[p] = load_scales(block + p * kLanes * 2);
      dmin[p] = load_scales(block + 32 + p * kLanes * 2);
    }
    ahead.fetch<kHeadBytesQ4K>(block);
    const std::byte* sub = block + kHeadBytesQ4K;
    for (int g = 0; g < 8; ++g, sub += kSubBytes, x += x_step) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        ahead.fetch<kSubBytes, kParts>(sub, p);
        Codes codes[8];
        split_nibbles(sub + 32, p, codes);
        if constexpr (kFive) add_fifth_bit<0>(load_codes(sub + 288 + p * kLanes * 4), codes);
        const Vec scale = mul(d[p], unsigned_bytes(sub + p * kLanes));
        const Vec min = mul(dmin[p], unsigned_bytes(sub + 16 + p * kLanes));
        dot_rows<kFive ? 31 : 15, M>(codes, x, [](const ActBlock&) { return 0; }, [&](int m, const ActBlock& act, Vec dot) {
          acc[m][p] = add_block(acc[m][p], scale, act, dot);
          acc[m][p] = nmadd(min, set(act.scaled_sum), acc[m][p]);
        });
      }
    }
  }
};

// The codes of four k-groups from the three bytes of packed_layout.h.
HEIRLOOM_INLINE void split_sixes(const std::byte* bytes, int part, Codes* codes) {
  const Codes a = load_codes(bytes + part * kLanes * 4);
  const Codes b = load_codes(bytes + 64 + part * kLanes * 4);
  const Codes c = load_codes(bytes + 128 + part * kLanes * 4);
  codes[0] = bits<0, 63>(a);
  codes[1] = bits<0, 63>(b);
  codes[2] = bits<0, 63>(c);
  codes[3] = bits<2, 63>(differ(a, words_right<2>(differ(b, words_right<2>(c)))));
}

struct FormatQ6_K {
  static constexpr PackedType kType = PackedType::q6_k;
  template <int M>
  static HEIRLOOM_INLINE void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t x_step, Ahead ahead,
                                         Vec (&acc)[M][kParts]) {
    Vec d[kParts];
    for (int p = 0; p < kParts; ++p) d[p] = load_scales(block + p * kLanes * 2);
    ahead.fetch<kHeadBytesQ6K>(block);
    const std::byte* sub = block + kHeadBytesQ6K;
    for (int g = 0; g < 8; ++g, sub += kSubBlockBytesQ6K, x += x_step) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        ahead.fetch<kSubBlockBytesQ6K, kParts>(sub, p);
        Codes codes[8];
        split_sixes(sub + 32, p, codes);
        split_sixes(sub + 224, p, codes + 4);
        const Vec scale0 = signed_bytes(sub + p * kLanes);
        const Vec scale1 = signed_bytes(sub + 16 + p * kLanes);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const ActBlock& act = *record(x, 0, m);
          // Products and sum below 2^24: exact, so the order does not matter.
          const Vec first = mul(to_float(dot_codes<63, 4>(codes, act.q, act.neg32[0])), scale0);
          const Vec both = madd(to_float(dot_codes<63, 4>(codes + 4, act.q + 16, act.neg32[1])), scale1, first);
          acc[m][p] = add_block(acc[m][p], d[p], act, both);
        }
      }
    }
  }
};

template <class Format, int M>
void integer_rows(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step,
                  float* out, std::ptrdiff_t out_stride) {
  constexpr int kType = static_cast<int>(Format::kType);
  constexpr int kRecords = kBlockOf[kType] / kBlock;
  Vec acc[M][kParts];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) acc[m][p] = zero();
  }
  const std::byte* end = panel + k / kBlockOf[kType] * kBlockBytesOf[kType];
  const Ahead ahead(end, next);
  for (; panel != end; panel += kBlockBytesOf[kType], x += kRecords * x_step) {
    Format::template accumulate<M>(panel, x, x_step, ahead, acc);
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) store(out + m * out_stride + p * kLanes, acc[m][p]);
  }
}

struct FormatF32 {
  static constexpr int kBytes = 4;
  static HEIRLOOM_INLINE Vec load(const std::byte* p) { return load_floats(p); }
};
struct FormatF16 {
  static constexpr int kBytes = 2;
  static HEIRLOOM_INLINE Vec load(const std::byte* p) { return load_f16(reinterpret_cast<const std::uint16_t*>(p)); }
};
struct FormatBF16 {
  static constexpr int kBytes = 2;
  static HEIRLOOM_INLINE Vec load(const std::byte* p) { return load_bf16(reinterpret_cast<const std::uint16_t*>(p)); }
};

template <class Format, int M>
void float_rows(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step,
                float* out, std::ptrdiff_t out_stride) {
  Vec acc[M][kParts];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) acc[m][p] = zero();
  }
  constexpr int kStepBytes = kPanelRows * Format::kBytes;
  const std::byte* end = panel + k * kStepBytes;
  const Ahead ahead(end, next);
  for (; panel != end; panel += kStepBytes, x += x_step) {
    ahead.fetch<kStepBytes>(panel);
    Vec weights[kParts];
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) weights[p] = Format::load(panel + p * kLanes * Format::kBytes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Vec value = set(reinterpret_cast<const float*>(x)[m]);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) acc[m][p] = madd(value, weights[p], acc[m][p]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) store(out + m * out_stride + p * kLanes, acc[m][p]);
  }
}

// Cuts the rows of a tile into passes of M, M / 2, ... 1 rows.
template <class Format, int M>
HEIRLOOM_INLINE void integer_passes(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step, int rows, float* out,
                           std::ptrdiff_t out_stride) {
  for (; rows >= M; rows -= M, x += M * static_cast<std::ptrdiff_t>(sizeof(ActBlock)), out += M * out_stride) {
    integer_rows<Format, M>(panel, next, k, x, x_step, out, out_stride);
  }
  if constexpr (M > 1) {
    if (rows != 0) integer_passes<Format, M / 2>(panel, next, k, x, x_step, rows, out, out_stride);
  }
}
template <class Format, int M>
HEIRLOOM_INLINE void float_passes(const std::byte* panel, const std::byte* next, std::int64_t k, const std::byte* x, std::ptrdiff_t x_step, int rows, float* out,
                         std::ptrdiff_t out_stride) {
  for (; rows >= M; rows -= M, x += M * 4, out += M * out_stride) float_rows<Format, M>(panel, next, k, x, x_step, out, out_stride);
  if constexpr (M > 1) {
    if (rows != 0) float_passes<Format, M / 2>(panel, next, k, x, x_step, rows, out, out_stride);
  }
}

template <class Format>
void integer_panel(const std::byte* panel, const std::byte* next, std::int64_t k, const void* x, std::ptrdiff_t x_step, int rows, float* out,
                   std::ptrdiff_t out_stride) {
  integer_passes<Format, kMaxRows>(panel, next, k, static_cast<const std::byte*>(x), x_step, rows, out, out_stride);
}
template <class Format>
void float_panel(const std::byte* panel, const std::byte* next, std::int64_t k, const void* x, std::ptrdiff_t x_step, int rows, float* out,
                 std::ptrdiff_t out_stride) {
  float_passes<Format, kFloatRows>(panel, next, k, static_cast<const std::byte*>(x), x_step, rows, out, out_stride);
}

void fill_block_panels(LinearKernels& table) {
  table.panel[static_cast<int>(PackedType::q4_0)] = integer_panel<FormatQ4_0>;
  table.panel[static_cast<int>(PackedType::q8_0)] = integer_panel<FormatQ8_0>;
  table.panel[static_cast<int>(PackedType::q8_x)] = integer_panel<FormatQ8_X>;
}

[[maybe_unused]] void fill_integer_panels(LinearKernels& table) {
  fill_block_panels(table);
  table.panel[static_cast<int>(PackedType::q4_k)] = integer_panel<FormatQ45_K<false>>;
  table.panel[static_cast<int>(PackedType::q5_k)] = integer_panel<FormatQ45_K<true>>;
  table.panel[static_cast<int>(PackedType::q6_k)] = integer_panel<FormatQ6_K>;
}

[[maybe_unused]] void fill_float_panels(LinearKernels& table) {
  table.panel[static_cast<int>(PackedType::f32)] = float_panel<FormatF32>;
  table.panel[static_cast<int>(PackedType::f16)] = float_panel<FormatF16>;
  table.panel[static_cast<int>(PackedType::bf16)] = float_panel<FormatBF16>;
}

}  // namespace
}  // namespace heirloom::cpu::HEIRLOOM_ISA
