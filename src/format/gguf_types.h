// The type numbers of the GGUF format: metadata value types and tensor (ggml) types, those we read and those
// we only know the names and sizes of. Source: the GGUF specification and the `gguf` Python package's
// constants.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"

namespace heirloom {

enum class GgufType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// "uint32", "string", ...; "unknown" for a number outside the enumeration.
std::string_view gguf_type_name(GgufType type);
/// Bytes of a fixed-size value; 0 for string, array and unknown numbers.
std::uint32_t gguf_type_bytes(GgufType type);

struct GgmlType {
  std::uint32_t number;
  std::string_view name;     // as llama.cpp prints it: "Q4_K"
  std::uint32_t block_size;  // 0: removed from the format, geometry unknown
  std::uint32_t block_bytes;
  std::optional<DType> type;  // empty: known by name, not supported
};

/// The entry of a tensor type number; nullptr if no version of the format defined it.
const GgmlType* find_ggml_type(std::uint32_t number);
/// The entry a DType is stored as; nullptr for u8, which GGUF tensors cannot have.
const GgmlType* ggml_type_of(DType type);

}  // namespace heirloom
