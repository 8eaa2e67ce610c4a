#include "format/gguf_types.h"

#include <array>

namespace heirloom {
namespace {

constexpr std::array<GgmlType, 42> kGgmlTypes = {{
    {0, "F32", 1, 4, DType::f32},
    {1, "F16", 1, 2, DType::f16},
    {2, "Q4_0", 32, 18, DType::q4_0},
    {3, "Q4_1", 32, 20, DType::q4_1},
    {4, "Q4_2", 0, 0, std::nullopt},
    {5, "Q4_3", 0, 0, std::nullopt},
    {6, "Q5_0", 32, 22, DType::q5_0},
    {7, "Q5_1", 32, 24, DType::q5_1},
    {8, "Q8_0", 32, 34, DType::q8_0},
    {9, "Q8_1", 32, 36, std::nullopt},
    {10, "Q2_K", 256, 84, DType::q2_k},
    {11, "Q3_K", 256, 110, DType::q3_k},
    {12, "Q4_K", 256, 144, DType::q4_k},
    {13, "Q5_K", 256, 176, DType::q5_k},
    {14, "Q6_K", 256, 210, DType::q6_k},
    {15, "Q8_K", 256, 292, std::nullopt},
    {16, "IQ2_XXS", 256, 66, std::nullopt},
    {17, "IQ2_XS", 256, 74, std::nullopt},
    {18, "IQ3_XXS", 256, 98, std::nullopt},
    {19, "IQ1_S", 256, 50, std::nullopt},
    {20, "IQ4_NL", 32, 18, DType::iq4_nl},
    {21, "IQ3_S", 256, 110, std::nullopt},
    {22, "IQ2_S", 256, 82, std::nullopt},
    {23, "IQ4_XS", 256, 136, DType::iq4_xs},
    {24, "I8", 1, 1, DType::i8},
    {25, "I16", 1, 2, DType::i16},
    {26, "I32", 1, 4, DType::i32},
    {27, "I64", 1, 8, DType::i64},
    {28, "F64", 1, 8, DType::f64},
    {29, "IQ1_M", 256, 56, std::nullopt},
    {30, "BF16", 1, 2, DType::bf16},
    {31, "Q4_0_4_4", 0, 0, std::nullopt},
    {32, "Q4_0_4_8", 0, 0, std::nullopt},
    {33, "Q4_0_8_8", 0, 0, std::nullopt},
    {34, "TQ1_0", 256, 54, std::nullopt},
    {35, "TQ2_0", 256, 66, std::nullopt},
    {36, "IQ4_NL_4_4", 0, 0, std::nullopt},
    {37, "IQ4_NL_4_8", 0, 0, std::nullopt},
    {38, "IQ4_NL_8_8", 0, 0, std::nullopt},
    {39, "MXFP4", 32, 17, DType::mxfp4},
    {40, "NVFP4", 64, 36, std::nullopt},
    {41, "Q1_0", 128, 18, std::nullopt},
}};

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                       "int32",  "float32", "bool",   "string", "array",
                                                       "uint64", "int64",   "float64"};
  const auto number = static_cast<std::uint32_t>(type);
  return number < kNames.size() ? kNames[number] : "unknown";
}

std::uint32_t gguf_type_bytes(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      break;
  }
  return 0;
}

const GgmlType* find_ggml_type(std::uint32_t number) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

const GgmlType* ggml_type_of(DType type) {
  for (const GgmlType& entry : kGgmlTypes) {
    if (entry.type == type) return &entry;
  }
  return nullptr;
}

}  // namespace heirloom
