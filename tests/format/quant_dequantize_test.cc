// Every readable block type against the values that the `gguf` Python package decodes.
#include <gtest/gtest.h>

#include <cctype>

#include "format/quant_blocks.h"
#include "format/quant_golden.h"

namespace heirloom {
namespace {

using test::floats_of;
using test::same_float;

const char* const kTypes[] = {"F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",   "Q5_1",   "Q8_0", "Q2_K",
                              "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};

void expect_decodes(const SafetensorsFile& file, const std::string& type_name,
                    const std::string& bytes_name) {
  const TensorView& bytes = file.require(bytes_name);
  const std::vector<float> expected = floats_of(file.require(bytes_name + "_dequant"));
  const DType type = parse_dtype(type_name).value();
  ASSERT_EQ(row_bytes(type, expected.size()), bytes.data.size());
  std::vector<float> actual(expected.size());
  dequantize_row(type, bytes.data.data(), actual.data(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(same_float(actual[i], expected[i]))
        << bytes_name << " value " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

class dequantize_raw : public testing::TestWithParam<const char*> {};
class dequantize_quantized : public testing::TestWithParam<const char*> {};

TEST_P(dequantize_raw, random_blocks_decode_bit_for_bit) {
  const auto path = test::golden("quant/quant.safetensors");
  HEIRLOOM_REQUIRE(path);
  const SafetensorsFile file(path);
  expect_decodes(file, GetParam(), std::string(GetParam()) + ".raw");
}

TEST_P(dequantize_quantized, quantized_rows_decode_bit_for_bit) {
  const auto path = test::golden("quant/quant.safetensors");
  HEIRLOOM_REQUIRE(path);
  const SafetensorsFile file(path);
  expect_decodes(file, GetParam(), std::string(GetParam()) + ".quantized");
}

std::string type_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(every_type, dequantize_raw, testing::ValuesIn(kTypes), type_of);
// The types that the package can also write.
INSTANTIATE_TEST_SUITE_P(every_type, dequantize_quantized,
                         testing::Values("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"),
                         type_of);

TEST(dequantize, refuses_types_that_hold_no_weights) {
  const std::byte bytes[4] = {};
  float out = 0;
  EXPECT_FALSE(can_dequantize(DType::i32));
  EXPECT_THROW(dequantize_row(DType::i32, bytes, &out, 1), Error);
}

TEST(dequantize, reads_unaligned_rows) {
  std::vector<std::byte> bytes(1 + 34);
  bytes[2] = std::byte{0x3c};  // scale 1.0 in half precision
  for (int i = 0; i < 32; ++i)
    bytes[static_cast<std::size_t>(3 + i)] = std::byte(static_cast<unsigned char>(i - 16));
  float out[32];
  dequantize_row(DType::q8_0, bytes.data() + 1, out, 32);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], static_cast<float>(i - 16));
}

}  // namespace
}  // namespace heirloom
