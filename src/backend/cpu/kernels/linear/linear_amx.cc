// The amx tier: prefill tiles by TDPBSSD, 16 rows x 16 outputs x 32 k an instruction. Scales belong to blocks of 32, so a product's
// 32-bit sums leave the tile registers after every block and meet the same float operations as in the vpdpbusd kernels; sums are
// exact in both, so both give the same bits. Calls of few rows, and q6_k (scales of 16 k, which would halve the tiles again),
// stay with those kernels.
//
// What bounds it is the vector unit, with three operations for each 16 sums: so the tile unit's work, the unpacking of codes two
// blocks ahead and the scaling of sums two blocks behind are interleaved block by block, and one unpacking serves 32 rows.
// Measured beside vpdpbusd on a shared Xeon: 1.2 times its speed in plain products, 1.4 times in a layer of experts. (Phases of
// four blocks and 16 rows, tried first, gained nothing; 1 or 3 blocks ahead instead of 2 make no difference.)
// clang-format off: the bodies are written in the vocabulary that comes first.
#include "backend/cpu/kernels/linear/codes_avx512.h"

#include "backend/cpu/kernels/linear/linear_kernels.h"

namespace heirloom::cpu::avx512 {
namespace {

constexpr int kFewRows = 7;      // up to here the vpdpbusd kernels are used
constexpr int kAhead = 2;        // blocks between the unpacking of codes and their product, and between that and the scaling
constexpr int kHalf = 16;        // rows of a tile register
static_assert(kMaxTileRows == 2 * kHalf);

// What a block needs apart from x: B tile (row g = k-group g, as packed) and the scales of the 16 outputs.
struct alignas(64) Prepared {
  std::byte codes[8 * 64];
  float scale[kPanelRows];
  float min[kPanelRows];
};

HEIRLOOM_INLINE void store_codes(Prepared& to, int group, Codes codes) { _mm512_store_si512(to.codes + group * 64, codes); }

HEIRLOOM_INLINE void prepare_nibbles(const std::byte* nibbles, int bias, Prepared& to) {
  for (int h = 0; h < 4; ++h) {
    const Codes v = load_codes(nibbles + h * 64);
    store_codes(to, h, _mm512_sub_epi8(low_nibbles(v), _mm512_set1_epi8(static_cast<char>(bias))));
    store_codes(to, h + 4, _mm512_sub_epi8(high_nibbles(v), _mm512_set1_epi8(static_cast<char>(bias))));
  }
}

struct TileQ4_0 {
  static constexpr PackedType kType = PackedType::q4_0;
  static constexpr int kMin = 0;  // sign of the min's contribution
  static HEIRLOOM_INLINE void prepare(const std::byte* panel, std::int64_t b, Prepared& to) {
    const std::byte* block = panel + b * kBlockBytesOf[0];
    prepare_nibbles(block + 32, 8, to);
    store(to.scale, load_scales(block));
  }
};

HEIRLOOM_INLINE void prepare_bytes(const std::byte* bytes, Prepared& to) {
  for (int g = 0; g < 8; ++g) store_codes(to, g, _mm512_xor_si512(load_codes(bytes + g * 64), _mm512_set1_epi8(-128)));
}
struct TileQ8_0 {
  static constexpr PackedType kType = PackedType::q8_0;
  static constexpr int kMin = 0;
  static HEIRLOOM_INLINE void prepare(const std::byte* panel, std::int64_t b, Prepared& to) {
    const std::byte* block = panel + b * kBlockBytesOf[1];
    prepare_bytes(block + 32, to);
    store(to.scale, load_scales(block));
  }
};
struct TileQ8_X {
  static constexpr PackedType kType = PackedType::q8_x;
  static constexpr int kMin = 1;
  static HEIRLOOM_INLINE void prepare(const std::byte* panel, std::int64_t b, Prepared& to) {
    const std::byte* block = panel + b * kBlockBytesOf[2];
    prepare_bytes(block + 128, to);
    store(to.scale, load(reinterpret_cast<const float*>(block)));
    store(to.min, load(reinterpret_cast<const float*>(block + 64)));
  }
};

template <bool kFive>
struct TileQ45_K {
  static constexpr PackedType kType = kFive ? PackedType::q5_k : PackedType::q4_k;
  static constexpr int kMin = -1;
  static HEIRLOOM_INLINE void prepare(const std::byte* panel, std::int64_t b, Prepared& to) {
    const std::byte* super = panel + b / 8 * kBlockBytesOf[static_cast<int>(kType)];
    const std::byte* sub = super + kHeadBytesQ4K + b % 8 * (kFive ? kSubBlockBytesQ5K : kSubBlockBytesQ4K);
    prepare_nibbles(sub + 32, 0, to);
    if constexpr (kFive) {
      const Codes fifths = load_codes(sub + 288);
      for (int g = 0; g < 8; ++g) {
        const Codes bit = _mm512_and_si512(_mm512_srl_epi16(fifths, _mm_cvtsi32_si128(g)), _mm512_set1_epi8(1));
        store_codes(to, g, either(load_codes(to.codes + g * 64), _mm512_slli_epi16(bit, 4)));
      }
    }
    store(to.scale, mul(load_scales(super), unsigned_bytes(sub)));
    store(to.min, mul(load_scales(super + 32), unsigned_bytes(sub + 16)));
  }
};

// Palette 1: tmm0 and 1 sums [<= 16][16] int32 of the first half of the rows, tmm2 and 3 of the second; tmm4 and 5 x
// [<= 16][32] int8 of each half; tmm6 and 7 codes [8][64]. Even and odd blocks alternate between the pairs 0, 2, 6 and 1, 3, 7.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

thread_local int configured_rows = 0;  // the tile unit belongs to this file: its configuration is left loaded

HEIRLOOM_INLINE void configure(int rows) {
  if (rows == configured_rows) return;
  TileConfig config;
  const int first = rows < kHalf ? rows : kHalf, second = rows > kHalf ? rows - kHalf : 1;
  const int tile_rows[8] = {first, first, second, second, first, second, 8, 8};
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = t == 4 || t == 5 ? 32 : 64;
    config.rows[t] = static_cast<std::uint8_t>(tile_rows[t]);
  }
  // GCC 12's _tile_loadconfig tells the compiler of 8 of the 64 bytes, and the stores of the others are dropped.
  asm volatile("ldtilecfg %0" : : "m"(config));
  configured_rows = rows;
}

// The kernels for few rows, as the table had them.
PanelKernel few_rows[kNumPackedTypes];

// sums[rows][16] = x * codes for block `b` of up to 32 rows. In assembly because GCC's _tile_loadd does not tell the compiler that
// it reads memory.
template <int kOdd>
HEIRLOOM_INLINE void multiply_block(const std::byte* x, const Prepared& weights, int rows, std::int32_t* sums) {
  asm volatile(
      "tileloadd (%[codes],%[stride],1), %%tmm%c[b]\n\t"
      "tileloadd (%[x],%[stride],1), %%tmm4\n\t"
      "tilezero %%tmm%c[sum]\n\t"
      "tdpbssd %%tmm%c[b], %%tmm4, %%tmm%c[sum]\n\t"
      "tilestored %%tmm%c[sum], (%[sums],%[stride],1)"
      :
      : [x] "r"(x), [codes] "r"(weights.codes), [sums] "r"(sums), [stride] "r"(std::int64_t{64}), [sum] "i"(kOdd), [b] "i"(6 + kOdd)
      : "memory");
  if (rows <= kHalf) return;
  asm volatile(
      "tileloadd (%[x],%[stride],1), %%tmm5\n\t"
      "tilezero %%tmm%c[sum]\n\t"
      "tdpbssd %%tmm%c[b], %%tmm5, %%tmm%c[sum]\n\t"
      "tilestored %%tmm%c[sum], (%[sums],%[stride],1)"
      :
      : [x] "r"(x + kHalf * sizeof(ActBlock)), [sums] "r"(sums + kHalf * kPanelRows), [stride] "r"(std::int64_t{64}),
        [sum] "i"(2 + kOdd), [b] "i"(6 + kOdd)
      : "memory");
}
static_assert(sizeof(ActBlock) == 64);  // the stride of x's rows too

template <class Format>
void tile_panel(const std::byte* panel, const std::byte* next, std::int64_t k, const void* x_tile, std::ptrdiff_t x_step, int rows,
                float* out, std::ptrdiff_t out_stride) {
  if (rows <= kFewRows) {
    few_rows[static_cast<int>(Format::kType)](panel, next, k, x_tile, x_step, rows, out, out_stride);
    return;
  }
  configure(rows);
  alignas(64) float acc[kMaxTileRows * kPanelRows];
  alignas(64) std::int32_t sums[4][kMaxTileRows * kPanelRows];
  Prepared prepared[8];  // of block b: b % 8; 2 * kAhead + 1 are in use
  const auto* x = static_cast<const std::byte*>(x_tile);
  const std::int64_t blocks = k / kBlock;
  for (int r = 0; r < rows; ++r) store(acc + r * kPanelRows, zero());
  for (std::int64_t b = 0; b < kAhead && b < blocks; ++b) Format::prepare(panel, b, prepared[b % 8]);

  for (std::int64_t b = 0; b < blocks + kAhead; ++b) {
    if (b + kAhead < blocks) Format::prepare(panel, b + kAhead, prepared[(b + kAhead) % 8]);
    if (b < blocks) {
      const std::byte* first = x + b * x_step;
      if (b % 2 == 0) multiply_block<0>(first, prepared[b % 8], rows, sums[b % 4]);
      else multiply_block<1>(first, prepared[b % 8], rows, sums[b % 4]);
    }
    const std::int64_t scaled = b - kAhead;
    if (scaled < 0) continue;
    const Prepared& weights = prepared[scaled % 8];
    const Vec scale = load(weights.scale);
    const Vec min = Format::kMin != 0 ? load(weights.min) : zero();
    const auto* record = reinterpret_cast<const ActBlock*>(x + scaled * x_step);
    const std::int32_t* from = sums[scaled % 4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const Vec dot = to_float(_mm512_load_si512(from + r * kPanelRows));
      Vec sum = madd(mul(scale, set(record[r].scale)), dot, load(acc + r * kPanelRows));
      if constexpr (Format::kMin > 0) sum = madd(min, set(record[r].scaled_sum), sum);
      if constexpr (Format::kMin < 0) sum = nmadd(min, set(record[r].scaled_sum), sum);
      store(acc + r * kPanelRows, sum);
    }
  }
  for (int r = 0; r < rows; ++r) store(out + r * out_stride, load(acc + r * kPanelRows));
}

template <class Format>
void replace(LinearKernels& table) {
  constexpr int kType = static_cast<int>(Format::kType);
  few_rows[kType] = table.panel[kType];
  table.panel[kType] = tile_panel<Format>;
}

}  // namespace
}  // namespace heirloom::cpu::avx512

namespace heirloom::cpu::amx {

void fill_linear_kernels(LinearKernels& table) {
  avx512::replace<avx512::TileQ4_0>(table);
  avx512::replace<avx512::TileQ8_0>(table);
  avx512::replace<avx512::TileQ8_X>(table);
  avx512::replace<avx512::TileQ45_K<false>>(table);
  avx512::replace<avx512::TileQ45_K<true>>(table);
}

}  // namespace heirloom::cpu::amx
