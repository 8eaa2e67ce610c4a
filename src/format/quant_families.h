// Per-family decoders and encoders behind quant_blocks.h, one .cc each. Internal to format/. `blocks` is a
// number of blocks.
#pragma once

#include <cstddef>

#include "base/block_layouts.h"

namespace heirloom::quant {

// quant_legacy.cc: 32 values, one scale (and minimum)
void dequantize(const BlockQ4_0* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ4_1* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ5_0* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ5_1* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ8_0* src, float* dst, std::size_t blocks);
void quantize(const float* src, BlockQ4_0* dst, std::size_t blocks);
void quantize(const float* src, BlockQ4_1* dst, std::size_t blocks);
void quantize(const float* src, BlockQ5_0* dst, std::size_t blocks);
void quantize(const float* src, BlockQ5_1* dst, std::size_t blocks);
void quantize(const float* src, BlockQ8_0* dst, std::size_t blocks);

// quant_k.cc: super-blocks of 256
void dequantize(const BlockQ2_K* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ3_K* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ4_K* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ5_K* src, float* dst, std::size_t blocks);
void dequantize(const BlockQ6_K* src, float* dst, std::size_t blocks);

// quant_k_search.cc: importance [blocks, 256] or nullptr
void quantize(const float* src, const float* importance, BlockQ4_K* dst, std::size_t blocks);
void quantize(const float* src, const float* importance, BlockQ5_K* dst, std::size_t blocks);
void quantize(const float* src, const float* importance, BlockQ6_K* dst, std::size_t blocks);

// quant_codebook.cc: 4-bit indices into a table
void dequantize(const BlockIQ4_NL* src, float* dst, std::size_t blocks);
void dequantize(const BlockIQ4_XS* src, float* dst, std::size_t blocks);
void dequantize(const BlockMXFP4* src, float* dst, std::size_t blocks);
void quantize(const float* src, BlockMXFP4* dst, std::size_t blocks);

}  // namespace heirloom::quant
