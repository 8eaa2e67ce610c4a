// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 with one half-precision scale, and a minimum in the _1 types. Products and sums
// are rounded to float one by one, in the order of the `gguf` package, so that results agree bit for bit.
#include "format/quant_families.h"

namespace heirloom::quant {
namespace {

std::uint32_t load_u32(const std::uint8_t bytes[4]) {
  return static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8 |
         static_cast<std::uint32_t>(bytes[2]) << 16 | static_cast<std::uint32_t>(bytes[3]) << 24;
}

// q[i] of a 5-bit block.
int five_bits(const std::uint8_t qs[16], std::uint32_t high, int i) {
  const int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
  return low | static_cast<int>((high >> i) & 1u) << 4;
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

}  // namespace heirloom::quant
