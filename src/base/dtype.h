// Element and block types of weights and tensors, with the block geometry of each. The numeric values are ours;
// format/ maps GGUF type numbers and safetensors dtype names to them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace heirloom {

enum class DType : std::uint8_t {
  f32, f16, bf16, f64, i8, i16, i32, i64, u8,
  q4_0, q4_1, q5_0, q5_1, q8_0,
  q2_k, q3_k, q4_k, q5_k, q6_k,
  iq4_nl, iq4_xs, mxfp4,
};

struct DTypeInfo {
  std::string_view name;      // as users type it: "q4_0", "bf16"
  std::uint32_t block_size;   // elements in a block (1 for plain types)
  std::uint32_t block_bytes;  // bytes of a block
};

/// Geometry and name; defined for every enumerator.
const DTypeInfo& dtype_info(DType type);

/// Type by user-facing name (case-insensitive); nullopt if unknown.
std::optional<DType> parse_dtype(std::string_view name);

/// Bytes of a row of `cols` elements. Requires cols % block_size == 0 and no overflow (callers check file input first).
std::uint64_t row_bytes(DType type, std::uint64_t cols);

inline std::string_view dtype_name(DType type) { return dtype_info(type).name; }
inline bool is_quantized(DType type) { return dtype_info(type).block_size > 1; }

}  // namespace heirloom
