// IQ4_NL, IQ4_XS and MXFP4: 4-bit indices into a table of sixteen values, times a scale.
#include "format/quant_families.h"

namespace heirloom::quant {
namespace {

// 32 values in the nibble order of all 32-value blocks.
void decode_nibbles(const std::uint8_t qs[16], const std::int8_t table[16], float scale, float* dst) {
  for (int j = 0; j < 16; ++j) {
    dst[j] = scale * static_cast<float>(table[qs[j] & 15]);
    dst[j + 16] = scale * static_cast<float>(table[qs[j] >> 4]);
  }
}

}  // namespace

void dequantize(const BlockIQ4_NL* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 32) decode_nibbles(src[b].qs, kIq4Values, load_f16(src[b].d), dst);
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
  for (std::size_t b = 0; b < blocks; ++b, dst += 32) decode_nibbles(src[b].qs, kMxfp4Values, mxfp4_scale(src[b].e), dst);
}

}  // namespace heirloom::quant
