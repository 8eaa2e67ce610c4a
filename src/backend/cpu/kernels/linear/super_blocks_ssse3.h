// K-quants of the ssse3 tier. Its three vector ports are the limit (64 codes are 16 instructions and more), so everything that
// is not a product is kept off them:
//   - pmaddwd widens the 16-bit sums with the sub-block's integer scale instead of ones: scaling costs nothing;
//   - d and dmin multiply once a super-block: acc += d * sum(x.scale * (sc . dot)), acc -= dmin * sum(x.scaled_sum * m);
//   - one row of x (decode) takes all 16 outputs at once, so that each of its broadcasts serves four vectors of codes.
// sc . dot is exact in 32 bits and, below 2^24, in float. One row and several do the same float operations in the same order.
#pragma once

#include "backend/cpu/kernels/linear/linear_kernels.h"

namespace heirloom::cpu::ssse3 {
namespace {

static_assert(kParts == 4);

// Sums of 16 bits: lane 2 r holds row r's products with k % 4 < 2, lane 2 r + 1 the others.
//
// The offset of q6_k in that form: -32 * the sum of 16 activations, split like the sums. With it first, a lane is at most
// 8 * 32 * 127 = 32512 in magnitude after every addition, where four sums of codes up to 63 alone would leave 16 bits.
HEIRLOOM_INLINE std::int32_t pair_offset(const std::int8_t* q) {
  const Codes x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  Codes sums = multiply_pairs(_mm_set1_epi8(32), x);
  sums = add_pairs(sums, _mm_shuffle_epi32(sums, 0x4e));
  sums = add_pairs(sums, _mm_shuffle_epi32(sums, 0xb1));
  return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), sums));
}

void quantize_with_offsets(const float* x, std::int64_t k, ActBlock* out, std::ptrdiff_t step) {
  quantize_row(x, k, out, step);
  for (std::int64_t b = 0; b < k / kBlock; ++b, out += step) {
    out->pair_offset[0] = pair_offset(out->q);
    out->pair_offset[1] = pair_offset(out->q + kBlock / 2);
  }
}

// Adds in the order of the source: left alone, GCC adds products up as a tree and keeps them all in memory until then.
HEIRLOOM_INLINE void accumulate_pairs(Codes& sum, Codes codes, Codes x) {
  sum = add_pairs(sum, multiply_pairs(codes, x));
  asm("" : "+x"(sum));
}

HEIRLOOM_INLINE Codes broadcast32(std::int32_t v) { return _mm_set1_epi32(v); }

// Scales as pmaddwd wants them, each twice: of 4 rows, and of 16.
template <bool kSigned>
HEIRLOOM_INLINE Codes words_of_bytes(Codes bytes_twice) {
  return kSigned ? _mm_srai_epi16(bytes_twice, 8) : _mm_srli_epi16(bytes_twice, 8);
}
template <bool kSigned>
HEIRLOOM_INLINE Codes scale_pairs(const std::byte* p) {
  const Codes bytes = load4(p);
  const Codes words = words_of_bytes<kSigned>(_mm_unpacklo_epi8(bytes, bytes));
  return _mm_unpacklo_epi16(words, words);
}
template <bool kSigned>
HEIRLOOM_INLINE void scale_pairs(const std::byte* p, Codes (&out)[kParts]) {
  const Codes bytes = load_codes(p);
  const Codes low = words_of_bytes<kSigned>(_mm_unpacklo_epi8(bytes, bytes));
  const Codes high = words_of_bytes<kSigned>(_mm_unpackhi_epi8(bytes, bytes));
  out[0] = _mm_unpacklo_epi16(low, low);
  out[1] = _mm_unpackhi_epi16(low, low);
  out[2] = _mm_unpacklo_epi16(high, high);
  out[3] = _mm_unpackhi_epi16(high, high);
}

// sum += x * value
HEIRLOOM_INLINE void add_scaled(Vec& sum, float x, Vec value) { sum = madd(set(x), value, sum); }

HEIRLOOM_INLINE Vec floats_of_low_words(Codes v) { return to_float(_mm_unpacklo_epi16(v, _mm_setzero_si128())); }
HEIRLOOM_INLINE Vec floats_of_high_words(Codes v) { return to_float(_mm_unpackhi_epi16(v, _mm_setzero_si128())); }

template <bool kFive>
struct SuperQ45_K {
  static constexpr PackedType kType = kFive ? PackedType::q5_k : PackedType::q4_k;
  static constexpr int kSubBytes = kFive ? kSubBlockBytesQ5K : kSubBlockBytesQ4K;
  // 16 bits hold eight sums of 4-bit products or four of 5-bit ones.
  static constexpr int kPhases = kFive ? 2 : 1;

  template <int M>
  static HEIRLOOM_INLINE void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t x_step, Ahead ahead,
                                         Vec (&acc)[M][kParts]) {
    ahead.fetch<kHeadBytesQ4K>(block);
    Vec scaled[M][kParts], mins[M][kParts];
    for (int m = 0; m < M; ++m) {
      for (int p = 0; p < kParts; ++p) scaled[m][p] = mins[m][p] = zero();
    }
    const std::byte* sub = block + kHeadBytesQ4K;
    for (int g = 0; g < 8; ++g, sub += kSubBytes, x += x_step) {
      if constexpr (M == 1) {
        one_row(sub, *record(x, 0, 0), ahead, scaled[0], mins[0]);
      } else {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) some_rows(sub, p, x, ahead, scaled, mins);
      }
    }
    for (int p = 0; p < kParts; ++p) {
      const Vec d = load_scales(block + p * 8), dmin = load_scales(block + 32 + p * 8);
      for (int m = 0; m < M; ++m) acc[m][p] = nmadd(dmin, mins[m][p], madd(d, scaled[m][p], acc[m][p]));
    }
  }

 private:
  static HEIRLOOM_INLINE void one_row(const std::byte* sub, const ActBlock& x, Ahead ahead, Vec (&scaled)[kParts], Vec (&mins)[kParts]) {
    Codes dots[kParts], scales[kParts];
    scale_pairs<false>(sub, scales);
#pragma GCC unroll 2
    for (int phase = 0; phase < kPhases; ++phase) {
      Codes sums[kParts];
#pragma GCC unroll 4
      for (int h = phase * 2; h < (kFive ? phase * 2 + 2 : 4); ++h) {
        ahead.fetch<kSubBytes, 4>(sub, h);
        const Codes x_low = broadcast4(x.q + 4 * h), x_high = broadcast4(x.q + 16 + 4 * h);
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) {
          const Codes nibbles = load_codes(sub + 32 + h * 64 + p * 16);
          Codes low = low_nibbles(nibbles), high = high_nibbles(nibbles);
          if constexpr (kFive) {
            const Codes fifths = load_codes(sub + 288 + p * 16);
            low = either(low, _mm_and_si128(_mm_slli_epi16(fifths, 4 - h), _mm_set1_epi8(16)));
            high = either(high, _mm_and_si128(_mm_srli_epi16(fifths, h), _mm_set1_epi8(16)));
          }
          if (h == phase * 2) {
            sums[p] = multiply_pairs(low, x_low);
          } else {
            accumulate_pairs(sums[p], low, x_low);
          }
          accumulate_pairs(sums[p], high, x_high);
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        const Codes dot = _mm_madd_epi16(sums[p], scales[p]);
        dots[p] = phase == 0 ? dot : add_codes(dots[p], dot);
      }
    }
    const Codes bytes = load_codes(sub + 16);
    const Codes low = _mm_unpacklo_epi8(bytes, _mm_setzero_si128()), high = _mm_unpackhi_epi8(bytes, _mm_setzero_si128());
    const Vec m[kParts] = {floats_of_low_words(low), floats_of_high_words(low), floats_of_low_words(high), floats_of_high_words(high)};
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      add_scaled(scaled[p], x.scale, to_float(dots[p]));
      add_scaled(mins[p], x.scaled_sum, m[p]);
    }
  }

  template <int M>
  static HEIRLOOM_INLINE void some_rows(const std::byte* sub, int part, const std::byte* records, Ahead ahead,
                                        Vec (&scaled)[M][kParts], Vec (&mins)[M][kParts]) {
    ahead.fetch<kSubBytes, kParts>(sub, part);
    Codes codes[8];
    split_nibbles(sub + 32, part, codes);
    if constexpr (kFive) add_fifth_bit<0>(load_codes(sub + 288 + part * 16), codes);
    const Codes scales = scale_pairs<false>(sub + part * 4);
    const Vec min = unsigned_bytes(sub + 16 + part * 4);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const ActBlock& x = *record(records, 0, m);
      Codes dot = set_codes(0);
#pragma GCC unroll 2
      for (int phase = 0; phase < kPhases; ++phase) {
        constexpr int kGroups = 8 / kPhases;
        Codes sums = multiply_pairs(codes[phase * kGroups], broadcast4(x.q + phase * kGroups * 4));
#pragma GCC unroll 8
        for (int g = 1; g < kGroups; ++g) {
          sums = add_pairs(sums, multiply_pairs(codes[phase * kGroups + g], broadcast4(x.q + (phase * kGroups + g) * 4)));
        }
        const Codes scaled_dot = _mm_madd_epi16(sums, scales);
        dot = phase == 0 ? scaled_dot : add_codes(dot, scaled_dot);
      }
      add_scaled(scaled[m][part], x.scale, to_float(dot));
      add_scaled(mins[m][part], x.scaled_sum, min);
    }
  }
};

struct SuperQ6_K {
  static constexpr PackedType kType = PackedType::q6_k;

  template <int M>
  static HEIRLOOM_INLINE void accumulate(const std::byte* block, const std::byte* x, std::ptrdiff_t x_step, Ahead ahead,
                                         Vec (&acc)[M][kParts]) {
    ahead.fetch<kHeadBytesQ6K>(block);
    Vec scaled[M][kParts];
    for (int m = 0; m < M; ++m) {
      for (int p = 0; p < kParts; ++p) scaled[m][p] = zero();
    }
    const std::byte* sub = block + kHeadBytesQ6K;
    for (int g = 0; g < 8; ++g, sub += kSubBlockBytesQ6K, x += x_step) {
      if constexpr (M == 1) {
        one_row(sub, *record(x, 0, 0), ahead, scaled[0]);
      } else {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) some_rows(sub, p, x, ahead, scaled);
      }
    }
    for (int p = 0; p < kParts; ++p) {
      const Vec d = load_scales(block + p * 8);
      for (int m = 0; m < M; ++m) acc[m][p] = madd(d, scaled[m][p], acc[m][p]);
    }
  }

 private:
  static constexpr int kHalfBytes = 3 * 64;

  static HEIRLOOM_INLINE void one_row(const std::byte* sub, const ActBlock& x, Ahead ahead, Vec (&scaled)[kParts]) {
    Codes dots[kParts];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Codes scales[kParts];
      scale_pairs<true>(sub + half * 16, scales);
      const std::int8_t* q = x.q + half * 16;
      const Codes offset = broadcast32(x.pair_offset[half]);
      const Codes x0 = broadcast4(q), x1 = broadcast4(q + 4), x2 = broadcast4(q + 8), x3 = broadcast4(q + 12);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        ahead.fetch<kSubBlockBytesQ6K, 8>(sub, half * 4 + p);
        Codes codes[4];
        split_sixes(sub + 32 + half * kHalfBytes, p, codes);
        Codes sums = offset;
        accumulate_pairs(sums, codes[2], x2);
        accumulate_pairs(sums, codes[1], x1);
        accumulate_pairs(sums, codes[0], x0);
        accumulate_pairs(sums, codes[3], x3);
        const Codes dot = _mm_madd_epi16(sums, scales[p]);
        dots[p] = half == 0 ? dot : add_codes(dots[p], dot);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) add_scaled(scaled[p], x.scale, to_float(dots[p]));
  }

  template <int M>
  static HEIRLOOM_INLINE void some_rows(const std::byte* sub, int part, const std::byte* records, Ahead ahead,
                                        Vec (&scaled)[M][kParts]) {
    ahead.fetch<kSubBlockBytesQ6K, kParts>(sub, part);
    Codes codes[8];
    split_sixes(sub + 32, part, codes);
    split_sixes(sub + 32 + kHalfBytes, part, codes + 4);
    const Codes scales[2] = {scale_pairs<true>(sub + part * 4), scale_pairs<true>(sub + 16 + part * 4)};
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const ActBlock& x = *record(records, 0, m);
      Codes dot = set_codes(0);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Codes sums = broadcast32(x.pair_offset[half]);
#pragma GCC unroll 4
        for (int g = 4 * half; g < 4 * half + 4; ++g) sums = add_pairs(sums, multiply_pairs(codes[g], broadcast4(x.q + 4 * g)));
        const Codes scaled_dot = _mm_madd_epi16(sums, scales[half]);
        dot = half == 0 ? scaled_dot : add_codes(dot, scaled_dot);
      }
      add_scaled(scaled[m][part], x.scale, to_float(dot));
    }
  }
};

}  // namespace
}  // namespace heirloom::cpu::ssse3
