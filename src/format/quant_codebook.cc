// IQ4_NL, IQ4_XS and MXFP4: 4-bit indices into a table of sixteen values, times a scale.
#include <algorithm>
#include <cmath>

#include "format/quant_families.h"

namespace heirloom::quant {
namespace {

// Shared exponent of an MXFP4 block: the peak's binary exponent less that of E2M1's largest value (4 = 2^2),
// biased. The reference takes log2 in float and lets peaks below 2^-125 wrap around; their values are all
// nearest to 0, so that the exponent means nothing there, but bytes should agree.
std::uint8_t mxfp4_exponent(float peak) {
  if (peak == 0) return 0;
  return static_cast<std::uint8_t>(static_cast<int>(std::floor(std::log2(peak))) - 2 + 127);
}

// Index of the nearest value; the lowest of equals.
int nearest_mxfp4(float scale, float value) {
  int best = 0;
  float least = std::fabs(-value);
  for (int i = 1; i < 16; ++i) {
    const float error = std::fabs(scale * static_cast<float>(kMxfp4Values[i]) - value);
    if (error < least) {
      least = error;
      best = i;
    }
  }
  return best;
}

// 32 values in the nibble order of all 32-value blocks.
void decode_nibbles(const std::uint8_t qs[16], const std::int8_t table[16], float scale, float* dst) {
  for (int j = 0; j < 16; ++j) {
    dst[j] = scale * static_cast<float>(table[qs[j] & 15]);
    dst[j + 16] = scale * static_cast<float>(table[qs[j] >> 4]);
  }
}

}  // namespace

void dequantize(const BlockIQ4_NL* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32)
    decode_nibbles(src[b].qs, kIq4Values, load_f16(src[b].d), dst);
}

void dequantize(const BlockIQ4_XS* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 256) {
    const float d = load_f16(src[b].d);
    const int high = src[b].scales_h[0] | src[b].scales_h[1] << 8;
    for (int g = 0; g < 8; ++g) {
      const int scale = ((src[b].scales_l[g / 2] >> (g % 2 * 4)) & 15) | ((high >> (2 * g)) & 3) << 4;
      decode_nibbles(src[b].qs + g * 16, kIq4Values, d * static_cast<float>(scale - 32), dst + g * 32);
    }
  }
}

void dequantize(const BlockMXFP4* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32)
    decode_nibbles(src[b].qs, kMxfp4Values, mxfp4_scale(src[b].e), dst);
}

void quantize(const float* src, BlockMXFP4* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, src += 32) {
    float peak = 0;
    for (int i = 0; i < 32; ++i) peak = std::max(peak, std::fabs(src[i]));
    dst[b].e = mxfp4_exponent(peak);
    const float scale = mxfp4_scale(dst[b].e);
    for (int j = 0; j < 16; ++j) {
      dst[b].qs[j] =
          static_cast<std::uint8_t>(nearest_mxfp4(scale, src[j]) | nearest_mxfp4(scale, src[j + 16]) << 4);
    }
  }
}

}  // namespace heirloom::quant
