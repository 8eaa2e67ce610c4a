// Decoders of the K-quants: super-blocks of 256 with quantised group scales. Bit layouts: block_layouts.h.
// Group scales are multiplied out first and each product is rounded to float, as the `gguf` package does, so
// that results agree bit for bit.
#include "format/quant_families.h"

namespace heirloom::quant {
namespace {

// 6-bit scale of group g of a Q3_K super-block, 0..63.
int q3_scale(const std::uint8_t scales[12], int g) {
  const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
  return low | ((scales[8 + g % 4] >> (2 * (g / 4))) & 3) << 4;
}

}  // namespace

void dequantize(const BlockQ2_K* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 256) {
    const float d = load_f16(src[b].d);
    const float dmin = load_f16(src[b].dmin);
    for (int g = 0; g < 16; ++g) {
      const float scale = d * static_cast<float>(src[b].scales[g] & 15);
      const float min = dmin * static_cast<float>(src[b].scales[g] >> 4);
      const std::uint8_t* qs = src[b].qs + g / 8 * 32 + g % 2 * 16;
      const int shift = g % 8 / 2 * 2;
      for (int l = 0; l < 16; ++l) dst[g * 16 + l] = scale * static_cast<float>((qs[l] >> shift) & 3) - min;
    }
  }
}

void dequantize(const BlockQ3_K* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 256) {
    const float d = load_f16(src[b].d);
    for (int g = 0; g < 16; ++g) {
      const float scale = d * static_cast<float>(q3_scale(src[b].scales, g) - 32);
      const std::uint8_t* qs = src[b].qs + g / 8 * 32 + g % 2 * 16;
      const std::uint8_t* hmask = src[b].hmask + g % 2 * 16;
      const int shift = g % 8 / 2 * 2;
      for (int l = 0; l < 16; ++l) {
        const int offset = (hmask[l] >> (g / 2)) & 1 ? 0 : 4;
        dst[g * 16 + l] = scale * static_cast<float>(((qs[l] >> shift) & 3) - offset);
      }
    }
  }
}

void dequantize(const BlockQ4_K* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 256) {
    const float d = load_f16(src[b].d);
    const float dmin = load_f16(src[b].dmin);
    for (int g = 0; g < 8; ++g) {
      const ScaleMin group = unpack_scale_min(src[b].scales, g);
      const float scale = d * static_cast<float>(group.scale);
      const float min = dmin * static_cast<float>(group.min);
      const std::uint8_t* qs = src[b].qs + g / 2 * 32;
      const int shift = g % 2 * 4;
      for (int l = 0; l < 32; ++l) dst[g * 32 + l] = scale * static_cast<float>((qs[l] >> shift) & 15) - min;
    }
  }
}

void dequantize(const BlockQ5_K* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 256) {
    const float d = load_f16(src[b].d);
    const float dmin = load_f16(src[b].dmin);
    for (int g = 0; g < 8; ++g) {
      const ScaleMin group = unpack_scale_min(src[b].scales, g);
      const float scale = d * static_cast<float>(group.scale);
      const float min = dmin * static_cast<float>(group.min);
      const std::uint8_t* qs = src[b].qs + g / 2 * 32;
      const int shift = g % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        const int q = ((qs[l] >> shift) & 15) | ((src[b].qh[l] >> g) & 1) << 4;
        dst[g * 32 + l] = scale * static_cast<float>(q) - min;
      }
    }
  }
}

void dequantize(const BlockQ6_K* src, float* dst, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, dst += 256) {
    const float d = load_f16(src[b].d);
    for (int g = 0; g < 16; ++g) {
      const float scale = d * static_cast<float>(src[b].scales[g]);
      const int half = g / 8;
      const int slice = g % 8 / 2;  // which 32 values of the half's 128
      const std::uint8_t* ql = src[b].ql + half * 64 + slice % 2 * 32 + g % 2 * 16;
      const std::uint8_t* qh = src[b].qh + half * 32 + g % 2 * 16;
      const int low_shift = slice / 2 * 4;
      const int high_shift = slice * 2;
      for (int l = 0; l < 16; ++l) {
        const int q = ((ql[l] >> low_shift) & 15) | ((qh[l] >> high_shift) & 3) << 4;
        dst[g * 16 + l] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

}  // namespace heirloom::quant
