// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 with one half-precision scale, and a minimum in the _1 types.
// Products and sums are rounded to float one by one, in the order of the `gguf` package, so that results
// agree bit for bit.
#include <algorithm>
#include <cmath>

#include "format/quant_families.h"

namespace heirloom::quant {
namespace {

void store_u32(std::uint32_t value, std::uint8_t bytes[4]) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint32_t load_u32(const std::uint8_t bytes[4]) {
  return static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8 |
         static_cast<std::uint32_t>(bytes[2]) << 16 | static_cast<std::uint32_t>(bytes[3]) << 24;
}

// q[i] of a 5-bit block.
int five_bits(const std::uint8_t qs[16], std::uint32_t high, int i) {
  const int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
  return low | static_cast<int>((high >> i) & 1u) << 4;
}

// 1 / d, and 0 for 0. A denormal d gives infinity, which to_level turns into level 0 as the reference's
// conversion does.
float inverse(float d) {
  return d == 0 ? 0.0f : 1.0f / d;
}

// Whole part of a non-negative value, 0 when it is not a number or infinite, at most `max`.
int to_level(float value, int max) {
  if (!(std::fabs(value) < 1e9f)) return 0;
  return std::min(static_cast<int>(value), max);
}

// The value of largest magnitude, with its sign; the first of equals.
float signed_peak(const float* x) {
  float peak = x[0];
  for (int i = 1; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(peak)) peak = x[i];
  }
  return peak;
}

// Levels 0..max of x = d (q - offset): the value of largest magnitude becomes -offset d, that is level 0.
float levels_around_zero(const float* x, int offset, int max, int q[32]) {
  const float d = signed_peak(x) / static_cast<float>(-offset);
  const float id = inverse(d);
  for (int i = 0; i < 32; ++i) q[i] = to_level(x[i] * id + (static_cast<float>(offset) + 0.5f), max);
  return d;
}

struct Range {
  float d, min;
};

// Levels 0..max of x = d q + min, spread over the range of the block.
Range levels_over_range(const float* x, int max, int q[32]) {
  const auto [lowest, highest] = std::minmax_element(x, x + 32);
  const Range range{(*highest - *lowest) / static_cast<float>(max), *lowest};
  const float id = inverse(range.d);
  for (int i = 0; i < 32; ++i) q[i] = to_level((x[i] - range.min) * id + 0.5f, max);
  return range;
}

void pack_nibbles(const int q[32], std::uint8_t qs[16]) {
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<std::uint8_t>((q[j] & 15) | (q[j + 16] & 15) << 4);
}

void pack_fifth_bits(const int q[32], std::uint8_t qh[4]) {
  std::uint32_t high = 0;
  for (int i = 0; i < 32; ++i) high |= static_cast<std::uint32_t>(q[i] >> 4) << i;
  store_u32(high, qh);
}

// Half away from zero; 0 for what is not finite.
std::int8_t round_to_i8(float value) {
  const float magnitude = std::fabs(value);
  if (!(magnitude < 1e9f)) return 0;
  const int whole = static_cast<int>(magnitude);
  const int rounded = whole + (magnitude - static_cast<float>(whole) >= 0.5f ? 1 : 0);
  return static_cast<std::int8_t>(value < 0 ? -rounded : rounded);
}

}  // namespace

void dequantize(const BlockQ4_0* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32) {
    const float d = load_f16(src[b].d);
    for (int j = 0; j < 16; ++j) {
      dst[j] = d * static_cast<float>((src[b].qs[j] & 15) - 8);
      dst[j + 16] = d * static_cast<float>((src[b].qs[j] >> 4) - 8);
    }
  }
}

void dequantize(const BlockQ4_1* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32) {
    const float d = load_f16(src[b].d);
    const float m = load_f16(src[b].m);
    for (int j = 0; j < 16; ++j) {
      dst[j] = d * static_cast<float>(src[b].qs[j] & 15) + m;
      dst[j + 16] = d * static_cast<float>(src[b].qs[j] >> 4) + m;
    }
  }
}

void dequantize(const BlockQ5_0* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32) {
    const float d = load_f16(src[b].d);
    const std::uint32_t high = load_u32(src[b].qh);
    for (int i = 0; i < 32; ++i) dst[i] = d * static_cast<float>(five_bits(src[b].qs, high, i) - 16);
  }
}

void dequantize(const BlockQ5_1* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32) {
    const float d = load_f16(src[b].d);
    const float m = load_f16(src[b].m);
    const std::uint32_t high = load_u32(src[b].qh);
    for (int i = 0; i < 32; ++i) dst[i] = d * static_cast<float>(five_bits(src[b].qs, high, i)) + m;
  }
}

void dequantize(const BlockQ8_0* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32) {
    const float d = load_f16(src[b].d);
    for (int i = 0; i < 32; ++i) dst[i] = static_cast<float>(src[b].qs[i]) * d;
  }
}

void quantize(const float* src, BlockQ4_0* dst, std::size_t blocks) {
  int q[32];
  for (std::size_t b = 0; b < blocks; ++b, src += 32) {
    dst[b].d = store_f16(levels_around_zero(src, 8, 15, q));
    pack_nibbles(q, dst[b].qs);
  }
}

void quantize(const float* src, BlockQ4_1* dst, std::size_t blocks) {
  int q[32];
  for (std::size_t b = 0; b < blocks; ++b, src += 32) {
    const Range range = levels_over_range(src, 15, q);
    dst[b].d = store_f16(range.d);
    dst[b].m = store_f16(range.min);
    pack_nibbles(q, dst[b].qs);
  }
}

void quantize(const float* src, BlockQ5_0* dst, std::size_t blocks) {
  int q[32];
  for (std::size_t b = 0; b < blocks; ++b, src += 32) {
    dst[b].d = store_f16(levels_around_zero(src, 16, 31, q));
    pack_nibbles(q, dst[b].qs);
    pack_fifth_bits(q, dst[b].qh);
  }
}

void quantize(const float* src, BlockQ5_1* dst, std::size_t blocks) {
  int q[32];
  for (std::size_t b = 0; b < blocks; ++b, src += 32) {
    const Range range = levels_over_range(src, 31, q);
    dst[b].d = store_f16(range.d);
    dst[b].m = store_f16(range.min);
    pack_nibbles(q, dst[b].qs);
    pack_fifth_bits(q, dst[b].qh);
  }
}

void quantize(const float* src, BlockQ8_0* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, src += 32) {
    const float d = std::fabs(signed_peak(src)) / 127;
    const float id = inverse(d);
    dst[b].d = store_f16(d);
    for (int i = 0; i < 32; ++i) dst[b].qs[i] = round_to_i8(src[i] * id);
  }
}

}  // namespace heirloom::quant
