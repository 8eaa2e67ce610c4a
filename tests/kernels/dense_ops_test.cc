// Norms, elementwise ops and row ops of the CPU backend on every tier of this machine: against the scalar specification at
// odd sizes, and the rule that a row's result depends on that row alone.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "kernels/op_cases.h"
#include "ops/reference.h"

namespace heirloom::test {
namespace {

using cpu::CpuBackend;
using ops::Matrix;
namespace reference = ops::reference;

constexpr std::int64_t kWidths[] = {1, 3, 15, 16, 17, 63, 64, 65, 127, 1024, 3584};
constexpr std::int64_t kRows[] = {1, 3, 8, 65};

class dense_ops : public testing::TestWithParam<CpuTier> {
 protected:
  /// Runs op(backend, rows of x) on all rows at once and row by row, with several thread counts: equal bit for bit.
  /// `op` may also use matching rows of `y`.
  void expect_rows_independent(const std::function<void(ops::Backend&, Matrix x, Matrix y, Matrix out)>& op) const {
    for (const std::int64_t cols : {17, 1030}) {
      for (const std::int64_t rows : kRows) {
        const std::vector<float> x = random_floats(rows * cols, 1, 3), y = random_floats(rows * cols, 2, 3);
        std::vector<float> alone(x.size());
        {
          CpuBackend one({.threads = 1, .tier = GetParam(), .profiler = nullptr});
          for (std::int64_t r = 0; r < rows; ++r) {
            std::vector<float> xr(x.begin() + r * cols, x.begin() + (r + 1) * cols), yr(y.begin() + r * cols, y.begin() + (r + 1) * cols);
            op(one, {xr.data(), 1, cols}, {yr.data(), 1, cols}, {alone.data() + r * cols, 1, cols});
          }
        }
        for (const int threads : {1, 2, 3, 7}) {
          CpuBackend many({.threads = threads, .tier = GetParam(), .profiler = nullptr});
          std::vector<float> xs = x, ys = y, out(x.size());
          op(many, {xs.data(), rows, cols}, {ys.data(), rows, cols}, {out.data(), rows, cols});
          ASSERT_EQ(std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)), 0)
              << rows << " rows of " << cols << ", " << threads << " threads";
        }
      }
    }
  }
};

TEST_P(dense_ops, rms_norm_matches_the_specification) {
  CpuBackend cpu({.threads = 2, .tier = GetParam(), .profiler = nullptr});
  for (const std::int64_t cols : kWidths) {
    for (const std::int64_t rows : kRows) {
      std::vector<float> x = random_floats(rows * cols, 11, 5), expected(x.size()), out(x.size());
      const std::vector<float> weight = random_floats(cols, 12);
      reference::rms_norm(matrix(x, rows), weight.data(), 1e-6f, matrix(expected, rows));
      cpu.rms_norm(matrix(x, rows), weight.data(), 1e-6f, matrix(out, rows));
      expect_close(out, expected, 1e-6, "rms_norm");
      cpu.rms_norm(matrix(x, rows), weight.data(), 1e-6f, matrix(x, rows));  // in place
      EXPECT_EQ(x, out);
    }
  }
}

TEST_P(dense_ops, add_rms_norm_updates_the_residual_and_matches) {
  CpuBackend cpu({.threads = 2, .tier = GetParam(), .profiler = nullptr});
  for (const std::int64_t cols : kWidths) {
    const std::int64_t rows = 5;
    std::vector<float> residual = random_floats(rows * cols, 21), delta = random_floats(rows * cols, 22);
    std::vector<float> expected_residual = residual, expected(residual.size()), out(residual.size());
    const std::vector<float> weight = random_floats(cols, 23);
    reference::add_rms_norm(matrix(expected_residual, rows), matrix(delta, rows), weight.data(), 1e-6f, matrix(expected, rows));
    cpu.add_rms_norm(matrix(residual, rows), matrix(delta, rows), weight.data(), 1e-6f, matrix(out, rows));
    EXPECT_EQ(residual, expected_residual);
    expect_close(out, expected, 1e-6, "add_rms_norm");
  }
}

TEST_P(dense_ops, layer_norm_matches_with_a_large_mean) {
  CpuBackend cpu({.threads = 2, .tier = GetParam(), .profiler = nullptr});
  for (const std::int64_t cols : kWidths) {
    const std::int64_t rows = 3;
    std::vector<float> x = random_floats(rows * cols, 31), expected(x.size()), out(x.size());
    for (float& v : x) v += 10;
    const std::vector<float> weight = random_floats(cols, 32), bias = random_floats(cols, 33);
    reference::layer_norm(matrix(x, rows), weight.data(), bias.data(), 1e-6f, matrix(expected, rows));
    cpu.layer_norm(matrix(x, rows), weight.data(), bias.data(), 1e-6f, matrix(out, rows));
    // The float mean is off by up to an ulp of 10 (1e-6), which the division by a deviation of 1 keeps. With a single
    // column the deviation is 0 and only the bias remains, if the mean is exact.
    expect_close(out, expected, 1e-5, "layer_norm of " + std::to_string(cols), 1.0);
  }
}

TEST_P(dense_ops, swiglu_and_gelu_are_accurate_over_the_whole_range) {
  CpuBackend cpu({.threads = 2, .tier = GetParam(), .profiler = nullptr});
  std::vector<float> x;
  for (float v = -100; v <= 100; v += 0.0101f) x.push_back(v);
  for (int e = -40; e <= 6; ++e) x.insert(x.end(), {std::ldexp(1.1f, e), -std::ldexp(1.3f, e)});
  x.insert(x.end(), {0.0f, -0.0f, 1000.0f, -1000.0f, 1e30f, -1e30f});
  std::vector<float> ones(x.size(), 1.0f), out(x.size());
  cpu.swiglu(matrix(x, 1), matrix(ones, 1), matrix(out, 1));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = reference::silu(x[i]);
    // exp is clamped at 88, which leaves sigmoid at 6e-39 where it should go on falling.
    ASSERT_NEAR(out[i], expected, std::abs(expected) * 5e-7 + std::abs(x[i]) * 1e-38) << "silu(" << x[i] << ")";
  }
  for (const ops::Gelu kind : {ops::Gelu::tanh, ops::Gelu::erf}) {
    out = x;
    cpu.gelu(matrix(out, 1), kind);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = reference::gelu(static_cast<double>(x[i]), kind);
      // Absolute 1e-7 near zero and in the tails, as torch's own float32 formula has it; relative for large values.
      ASSERT_NEAR(out[i], expected, std::max(1.0, std::abs(expected)) * 2e-7) << "gelu(" << x[i] << ")";
      if (std::abs(x[i]) < 3) {
        ASSERT_NEAR(out[i], expected, std::abs(expected) * 2e-6) << "gelu(" << x[i] << ")";
      }
    }
  }
}

TEST_P(dense_ops, bytes_become_the_values_of_their_channel) {
  CpuBackend cpu({.threads = 3, .tier = GetParam(), .profiler = nullptr});
  for (const std::int64_t plane : {1, 7, 196}) {
    const std::int64_t rows = 9, cols = 3 * plane;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
    const std::vector<float> table = random_floats(3 * 256, 43);
    std::vector<float> expected(bytes.size()), out(bytes.size());
    reference::byte_values(bytes.data(), table.data(), plane, matrix(expected, rows));
    cpu.byte_values(bytes.data(), table.data(), plane, matrix(out, rows));
    EXPECT_EQ(out, expected);
    EXPECT_EQ(out[static_cast<std::size_t>(cols + plane)], table[256 + bytes[static_cast<std::size_t>(cols + plane)]]);
  }
}

TEST_P(dense_ops, add_gather_scatter_move_exact_values) {
  CpuBackend cpu({.threads = 3, .tier = GetParam(), .profiler = nullptr});
  for (const std::int64_t cols : kWidths) {
    const std::int64_t rows = 9;
    std::vector<float> x = random_floats(rows * cols, 41), y = random_floats(rows * cols, 42), expected = x;
    reference::add(matrix(expected, rows), matrix(y, rows));
    std::vector<float> sum = x;
    cpu.add(matrix(sum, rows), matrix(y, rows));
    EXPECT_EQ(sum, expected);

    const std::vector<std::int32_t> picks{8, 0, 3, 3, 7};
    std::vector<float> picked(picks.size() * static_cast<std::size_t>(cols)), picked_expected = picked;
    reference::gather_rows(matrix(x, rows), picks.data(), matrix(picked_expected, 5));
    cpu.gather_rows(matrix(x, rows), picks.data(), matrix(picked, 5));
    EXPECT_EQ(picked, picked_expected);

    const std::vector<std::int32_t> places{8, 0, 3, 1, 7};
    std::vector<float> target = y, target_expected = y;
    reference::scatter_rows(matrix(picked, 5), places.data(), matrix(target_expected, rows));
    cpu.scatter_rows(matrix(picked, 5), places.data(), matrix(target, rows));
    EXPECT_EQ(target, target_expected);
  }
}

TEST_P(dense_ops, add_weighted_rows_matches) {
  CpuBackend cpu({.threads = 3, .tier = GetParam(), .profiler = nullptr});
  for (const std::int64_t cols : {1, 17, 64, 1152}) {
    std::vector<float> table = random_floats(20 * cols, 51), out = random_floats(7 * cols, 52), expected = out;
    std::vector<std::int32_t> rows;
    for (int i = 0; i < 28; ++i) rows.push_back(i * 13 % 20);
    const std::vector<float> weights = random_floats(28, 53);
    reference::add_weighted_rows(matrix(table, 20), rows.data(), weights.data(), 4, matrix(expected, 7));
    cpu.add_weighted_rows(matrix(table, 20), rows.data(), weights.data(), 4, matrix(out, 7));
    expect_close(out, expected, 1e-6, "add_weighted_rows");
  }
}

TEST_P(dense_ops, argmax_takes_the_first_of_equals_anywhere) {
  CpuBackend cpu({.threads = 3, .tier = GetParam(), .profiler = nullptr});
  for (const std::int64_t cols : {1, 2, 16, 63, 427, 16384, 16385, 248077}) {
    for (const std::int64_t place : {std::int64_t{0}, cols / 3, cols / 2, cols - 1}) {
      std::vector<float> x = random_floats(2 * cols, 61);
      x[static_cast<std::size_t>(place)] = 50;
      x[static_cast<std::size_t>(cols - 1)] = 50;  // an equal at the very end
      std::int32_t ids[2], expected[2];
      reference::argmax(matrix(x, 2), expected);
      cpu.argmax(matrix(x, 2), ids);
      EXPECT_EQ(ids[0], place);
      EXPECT_EQ(ids[0], expected[0]);
      EXPECT_EQ(ids[1], expected[1]);
    }
  }
  std::vector<float> nothing(70000, std::numeric_limits<float>::quiet_NaN());
  std::int32_t id = -1;
  cpu.argmax(matrix(nothing, 1), &id);
  EXPECT_EQ(id, 0);
}

TEST_P(dense_ops, rows_do_not_depend_on_their_neighbours_or_on_threads) {
  std::vector<float> weight = random_floats(1030, 71), bias = random_floats(1030, 72);
  expect_rows_independent([&](ops::Backend& b, Matrix x, Matrix, Matrix out) { b.rms_norm(x, weight.data(), 1e-6f, out); });
  expect_rows_independent([&](ops::Backend& b, Matrix x, Matrix y, Matrix out) { b.add_rms_norm(x, y, weight.data(), 1e-6f, out); });
  expect_rows_independent(
      [&](ops::Backend& b, Matrix x, Matrix, Matrix out) { b.layer_norm(x, weight.data(), bias.data(), 1e-6f, out); });
  expect_rows_independent([&](ops::Backend& b, Matrix x, Matrix y, Matrix out) { b.swiglu(x, y, out); });
  for (const ops::Gelu kind : {ops::Gelu::tanh, ops::Gelu::erf}) {
    expect_rows_independent([&](ops::Backend& b, Matrix x, Matrix, Matrix out) {
      std::memcpy(out.data, x.data, static_cast<std::size_t>(x.rows * x.cols) * sizeof(float));
      b.gelu(out, kind);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(tiers, dense_ops, testing::ValuesIn(supported_tiers()), tier_name);

TEST(cpu_backend, the_forced_tier_is_the_one_that_runs) {
  // One lane, four, eight with FMA and sixteen add up a row in different orders, so that the last bits tell them apart.
  std::vector<std::vector<float>> results;
  for (const CpuTier tier : supported_tiers()) {
    CpuBackend cpu({.threads = 1, .tier = tier, .profiler = nullptr});
    EXPECT_EQ(cpu.tier(), tier);
    EXPECT_NE(cpu.description().find("cpu " + std::string(cpu_tier_name(tier)) + ","), std::string::npos);
    const std::int64_t rows = 64, cols = 1000;
    std::vector<float> x = random_floats(rows * cols, 81), ones(static_cast<std::size_t>(cols), 1.0f), out(x.size());
    cpu.rms_norm(matrix(x, rows), ones.data(), 1e-6f, matrix(out, rows));
    results.push_back(out);
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      // avx512_vnni and amx run the float ops of avx512.
      const bool same_kernels = j >= static_cast<std::size_t>(CpuTier::avx512);
      EXPECT_EQ(results[i] == results[j], same_kernels) << "tiers " << i << " and " << j;
    }
  }
}

TEST(cpu_backend, memory_is_aligned_and_refusals_name_the_bytes) {
  CpuBackend cpu;
  ops::Buffer buffer = cpu.make_buffer(std::size_t{1000});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  try {
    cpu.alloc(std::size_t{1} << 62);
    FAIL() << "4 EiB were granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("4611686018427387904"), std::string::npos) << error.what();
  }
}

TEST(cpu_backend, profiler_counts_calls_and_time_by_op) {
  Profiler profiler;
  CpuBackend cpu({.threads = 1, .tier = best_cpu_tier(), .profiler = &profiler});
  std::vector<float> x(64, 1.0f), y(64, 2.0f);
  cpu.add(matrix(x, 1), matrix(y, 1));
  cpu.add(matrix(x, 1), matrix(y, 1));
  cpu.gelu(matrix(x, 1), ops::Gelu::tanh);
  ASSERT_EQ(profiler.entries().size(), 2u);
  EXPECT_EQ(profiler.entries()[0].name, "add");
  EXPECT_EQ(profiler.entries()[0].calls, 2u);
  EXPECT_EQ(profiler.entries()[1].name, "gelu");
  cpu.set_profiler(nullptr);
  cpu.add(matrix(x, 1), matrix(y, 1));
  EXPECT_EQ(profiler.entries()[0].calls, 2u);
}

}  // namespace
}  // namespace heirloom::test
