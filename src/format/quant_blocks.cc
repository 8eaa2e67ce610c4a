#include "format/quant_blocks.h"

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

}  // namespace

bool can_dequantize(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 || is_quantized(type);
}

void dequantize_row(DType type, const std::byte* src, float* dst, std::size_t n) {
  const std::size_t block_size = dtype_info(type).block_size;
  HEIRLOOM_CHECK(n % block_size == 0);
  const std::size_t blocks = n / block_size;
  switch (type) {
    case DType::f32: std::memcpy(dst, src, n * sizeof(float)); return;
    case DType::f16: return widen16<f16_to_f32>(src, dst, n);
    case DType::bf16: return widen16<bf16_to_f32>(src, dst, n);
    case DType::q4_0: return dequantize_blocks<BlockQ4_0>(src, dst, blocks);
    case DType::q4_1: return dequantize_blocks<BlockQ4_1>(src, dst, blocks);
    case DType::q5_0: return dequantize_blocks<BlockQ5_0>(src, dst, blocks);
    case DType::q5_1: return dequantize_blocks<BlockQ5_1>(src, dst, blocks);
    case DType::q8_0: return dequantize_blocks<BlockQ8_0>(src, dst, blocks);
    case DType::q2_k: return dequantize_blocks<BlockQ2_K>(src, dst, blocks);
    case DType::q3_k: return dequantize_blocks<BlockQ3_K>(src, dst, blocks);
    case DType::q4_k: return dequantize_blocks<BlockQ4_K>(src, dst, blocks);
    case DType::q5_k: return dequantize_blocks<BlockQ5_K>(src, dst, blocks);
    case DType::q6_k: return dequantize_blocks<BlockQ6_K>(src, dst, blocks);
    case DType::iq4_nl: return dequantize_blocks<BlockIQ4_NL>(src, dst, blocks);
    case DType::iq4_xs: return dequantize_blocks<BlockIQ4_XS>(src, dst, blocks);
    case DType::mxfp4: return dequantize_blocks<BlockMXFP4>(src, dst, blocks);
    case DType::f64:
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::u8: break;
  }
  fail(ErrorKind::bad_file, "type {} holds no weights; f32, f16, bf16 and the block types do", dtype_name(type));
}

}  // namespace heirloom
