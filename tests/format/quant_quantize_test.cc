// Encoders: the plain and 32-value types against the bytes of the `gguf` Python package, the K-quants against
// the error of ggml's own encoder on the same rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "format/quant_blocks.h"
#include "format/quant_golden.h"

namespace heirloom {
namespace {

using test::floats_of;
using test::same_float;

std::vector<std::byte> encode(DType type, const std::vector<float>& x, const float* importance = nullptr) {
  std::vector<std::byte> bytes(row_bytes(type, x.size()));
  quantize_row(type, x.data(), bytes.data(), x.size(), importance);
  return bytes;
}

std::vector<float> decode(DType type, std::span<const std::byte> bytes, std::size_t n) {
  std::vector<float> out(n);
  dequantize_row(type, bytes.data(), out.data(), n);
  return out;
}

class quantize : public testing::TestWithParam<const char*> {};

TEST_P(quantize, writes_the_same_bytes_as_the_gguf_package) {
  const auto path = test::golden("quant/quant.safetensors");
  HEIRLOOM_REQUIRE(path);
  const SafetensorsFile file(path);
  const DType type = parse_dtype(GetParam()).value();
  const std::vector<float> x = floats_of(file.require("x"));
  const TensorView& expected = file.require(std::string(GetParam()) + ".quantized");
  const std::vector<std::byte> actual = encode(type, x);
  ASSERT_EQ(actual.size(), expected.data.size());
  const std::size_t row = actual.size() / 11;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i], expected.data[i]) << "row " << i / row << ", byte " << i % row;
  }
}

std::string type_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(every_type, quantize,
                         testing::Values("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"),
                         type_of);

class quantize_k : public testing::TestWithParam<const char*> {};

double weighted_rmse(const std::vector<float>& x, const std::vector<float>& y, const float* weights) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    sum += error * error * (weights == nullptr ? 1.0 : static_cast<double>(weights[i]));
  }
  return std::sqrt(sum / static_cast<double>(x.size()));
}

// Error of our bytes and of ggml's for each row; ours may be 2 % worse at most.
void compare_with_ggml(const std::string& type_name, const std::string& suffix, bool weighted) {
  const auto path = test::golden("quant/k_quants.safetensors");
  HEIRLOOM_REQUIRE(path);
  const SafetensorsFile file(path);
  const DType type = parse_dtype(type_name).value();
  const TensorView& all = file.require("x");
  const std::vector<float> rows = floats_of(all);
  const std::vector<float> weights = floats_of(file.require("importance"));
  const float* importance = weighted ? weights.data() : nullptr;
  const TensorView& theirs = file.require(type_name + "." + suffix);
  const std::size_t cols = all.cols();
  const std::uint64_t bytes = row_bytes(type, cols);
  for (std::size_t r = 0; r < all.rows(); ++r) {
    const std::vector<float> x(rows.begin() + static_cast<std::ptrdiff_t>(r * cols),
                               rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * cols));
    const double reference =
        weighted_rmse(x, decode(type, theirs.data.subspan(r * bytes, bytes), cols), importance);
    const double ours = weighted_rmse(x, decode(type, encode(type, x, importance), cols), importance);
    EXPECT_LE(ours, 1.02 * reference) << type_name << " row " << r;
    testing::Test::RecordProperty("row" + std::to_string(r), std::to_string(ours / reference));
  }
}

TEST_P(quantize_k, is_as_close_as_ggml_on_every_distribution) {
  compare_with_ggml(GetParam(), "ggml", false);
}

TEST_P(quantize_k, is_as_close_as_ggml_under_importance) {
  compare_with_ggml(GetParam(), "ggml_weighted", true);
}

TEST_P(quantize_k, survives_extreme_rows) {
  const auto path = test::golden("quant/quant.safetensors");
  HEIRLOOM_REQUIRE(path);
  const SafetensorsFile file(path);
  const DType type = parse_dtype(GetParam()).value();
  const std::vector<float> x = floats_of(file.require("x"));
  const std::vector<float> y = decode(type, encode(type, x), x.size());
  for (std::size_t r = 0; r < 11; ++r) {
    float peak = 0;
    for (std::size_t i = 0; i < 1024; ++i) peak = std::max(peak, std::fabs(x[r * 1024 + i]));
    for (std::size_t i = 0; i < 1024; ++i) {
      const std::size_t at = r * 1024 + i;
      ASSERT_TRUE(std::isfinite(y[at])) << "row " << r << " value " << i;
      // No type here has fewer than 15 levels over twice the peak; a 6-bit scale and a half's rounding add to
      // that.
      ASSERT_LE(std::fabs(y[at] - x[at]), std::max(0.2f * peak, 1e-7f)) << "row " << r << " value " << i;
    }
  }
}

TEST_P(quantize_k, keeps_zeros_exactly) {
  const DType type = parse_dtype(GetParam()).value();
  const std::vector<float> zeros(512, 0.0f);
  EXPECT_EQ(decode(type, encode(type, zeros), 512), zeros);
}

TEST_P(quantize_k, survives_magnitudes_beyond_half_precision) {
  const DType type = parse_dtype(GetParam()).value();
  for (const float magnitude :
       {std::numeric_limits<float>::max(), 1e30f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    std::vector<float> x(256);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = (static_cast<float>(i % 17) / 8 - 1) * magnitude;
    for (const float value : decode(type, encode(type, x), x.size()))
      EXPECT_TRUE(std::isfinite(value)) << magnitude;
  }
}

TEST_P(quantize_k, survives_importance_of_zero_infinity_and_nan) {
  const DType type = parse_dtype(GetParam()).value();
  std::vector<float> x(256);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 31) - 15;
  for (const float weight :
       {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> importance(256, 1.0f);
    std::fill(importance.begin(), importance.begin() + 100, weight);
    const std::vector<float> y = decode(type, encode(type, x, importance.data()), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 4.0f) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(every_type, quantize_k, testing::Values("Q4_K", "Q5_K", "Q6_K"), type_of);

TEST(quantize_row, refuses_values_that_are_not_finite_in_block_types) {
  std::vector<float> x(256, 1.0f);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[77] = bad;
    for (const DType type : {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::mxfp4,
                             DType::q4_k, DType::q5_k, DType::q6_k}) {
      std::vector<std::byte> bytes(row_bytes(type, x.size()));
      EXPECT_THROW(quantize_row(type, x.data(), bytes.data(), x.size()), Error) << dtype_name(type);
    }
  }
}

TEST(quantize_row, refuses_types_without_an_encoder) {
  const std::vector<float> x(256, 1.0f);
  std::vector<std::byte> bytes(2048);
  for (const DType type : {DType::q2_k, DType::q3_k, DType::iq4_nl, DType::iq4_xs, DType::i32, DType::f64}) {
    EXPECT_FALSE(can_quantize(type));
    EXPECT_THROW(quantize_row(type, x.data(), bytes.data(), x.size()), Error) << dtype_name(type);
  }
}

}  // namespace
}  // namespace heirloom
