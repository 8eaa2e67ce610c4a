#include "format/quant_blocks.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "format/quant_families.h"

namespace heirloom {
namespace {

template <typename Block>
void dequantize_blocks(const std::byte* src, float* dst, std::size_t blocks) {
  quant::dequantize(reinterpret_cast<const Block*>(src), dst, blocks);
}

template <float (*convert)(std::uint16_t)>
void widen16(const std::byte* src, float* dst, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, src + 2 * i, 2);
    dst[i] = convert(bits);
  }
}

template <typename Block>
void quantize_blocks(const float* src, std::byte* dst, std::size_t blocks) {
  quant::quantize(src, reinterpret_cast<Block*>(dst), blocks);
}

template <typename Block>
void quantize_weighted(const float* src, const float* importance, std::byte* dst, std::size_t blocks) {
  quant::quantize(src, importance, reinterpret_cast<Block*>(dst), blocks);
}

template <std::uint16_t (*convert)(float)>
void narrow16(const float* src, std::byte* dst, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t bits = convert(src[i]);
    std::memcpy(dst + 2 * i, &bits, 2);
  }
}

void require_finite(DType type, const float* src, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isfinite(src[i])) {
      fail(ErrorKind::bad_file, "value {} of a row is {}, {} needs finite values", i, src[i],
           dtype_name(type));
    }
  }
}

}  // namespace

bool can_dequantize(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 || is_quantized(type);
}

void dequantize_row(DType type, const std::byte* src, float* dst, std::size_t n) {
  const std::size_t block_size = dtype_info(type).block_size;
  HEIRLOOM_CHECK(n % block_size == 0);
  const std::size_t blocks = n / block_size;
  switch (type) {
    case DType::f32:
      std::memcpy(dst, src, n * sizeof(float));
      return;
    case DType::f16:
      return widen16<f16_to_f32>(src, dst, n);
    case DType::bf16:
      return widen16<bf16_to_f32>(src, dst, n);
    case DType::q4_0:
      return dequantize_blocks<BlockQ4_0>(src, dst, blocks);
    case DType::q4_1:
      return dequantize_blocks<BlockQ4_1>(src, dst, blocks);
    case DType::q5_0:
      return dequantize_blocks<BlockQ5_0>(src, dst, blocks);
    case DType::q5_1:
      return dequantize_blocks<BlockQ5_1>(src, dst, blocks);
    case DType::q8_0:
      return dequantize_blocks<BlockQ8_0>(src, dst, blocks);
    case DType::q2_k:
      return dequantize_blocks<BlockQ2_K>(src, dst, blocks);
    case DType::q3_k:
      return dequantize_blocks<BlockQ3_K>(src, dst, blocks);
    case DType::q4_k:
      return dequantize_blocks<BlockQ4_K>(src, dst, blocks);
    case DType::q5_k:
      return dequantize_blocks<BlockQ5_K>(src, dst, blocks);
    case DType::q6_k:
      return dequantize_blocks<BlockQ6_K>(src, dst, blocks);
    case DType::iq4_nl:
      return dequantize_blocks<BlockIQ4_NL>(src, dst, blocks);
    case DType::iq4_xs:
      return dequantize_blocks<BlockIQ4_XS>(src, dst, blocks);
    case DType::mxfp4:
      return dequantize_blocks<BlockMXFP4>(src, dst, blocks);
    case DType::f64:
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::u8:
      break;
  }
  fail(ErrorKind::bad_file, "type {} holds no weights; f32, f16, bf16 and the block types do",
       dtype_name(type));
}

bool can_quantize(DType type) {
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q4_0:
    case DType::q4_1:
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0:
    case DType::mxfp4:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
      return true;
    default:
      return false;
  }
}

void quantize_row(DType type, const float* src, std::byte* dst, std::size_t n, const float* importance) {
  const std::size_t block_size = dtype_info(type).block_size;
  HEIRLOOM_CHECK(n % block_size == 0);
  const std::size_t blocks = n / block_size;
  if (is_quantized(type)) require_finite(type, src, n);
  switch (type) {
    case DType::f32:
      std::memcpy(dst, src, n * sizeof(float));
      return;
    case DType::f16:
      return narrow16<f32_to_f16>(src, dst, n);
    case DType::bf16:
      return narrow16<f32_to_bf16>(src, dst, n);
    case DType::q4_0:
      return quantize_blocks<BlockQ4_0>(src, dst, blocks);
    case DType::q4_1:
      return quantize_blocks<BlockQ4_1>(src, dst, blocks);
    case DType::q5_0:
      return quantize_blocks<BlockQ5_0>(src, dst, blocks);
    case DType::q5_1:
      return quantize_blocks<BlockQ5_1>(src, dst, blocks);
    case DType::q8_0:
      return quantize_blocks<BlockQ8_0>(src, dst, blocks);
    case DType::mxfp4:
      return quantize_blocks<BlockMXFP4>(src, dst, blocks);
    case DType::q4_k:
      return quantize_weighted<BlockQ4_K>(src, importance, dst, blocks);
    case DType::q5_k:
      return quantize_weighted<BlockQ5_K>(src, importance, dst, blocks);
    case DType::q6_k:
      return quantize_weighted<BlockQ6_K>(src, importance, dst, blocks);
    default:
      break;
  }
  fail(ErrorKind::bad_file,
       "type {} cannot be written; f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, mxfp4, q4_k, q5_k, q6_k can",
       dtype_name(type));
}

}  // namespace heirloom
