// Products with packed weights on every tier of this machine against the scalar specification (ops/reference.h), and the
// rule that a row's result does not depend on the rows beside it.
#include "backend/cpu/kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/weight/packed_weight.h"
#include "kernels/weight_maker.h"
#include "ops/reference.h"

namespace heirloom::test {
namespace {

struct Case {
  CpuTier tier;
  DType type;
};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(cpu_tier_name(info.param.tier)) + "_" + std::string(dtype_name(info.param.type));
}
std::vector<Case> cases() {
  std::vector<Case> all;
  for (CpuTier tier : kCpuTiers) {
    if (tier > best_cpu_tier()) continue;
    for (DType type : weight_types()) all.push_back({tier, type});
  }
  return all;
}

class Linear : public testing::TestWithParam<Case> {
 protected:
  std::vector<float> multiply(const ops::Weight& weight, std::vector<float>& x, std::int64_t rows, const float* bias = nullptr,
                              int threads = 2) {
    ThreadPool pool(threads);
    std::vector<float> out(static_cast<std::size_t>(rows * weight.rows), 1e30f);
    const ops::LinearOut outs[] = {{&weight, out.data(), bias}};
    cpu::linear(pool, GetParam().tier, {x.data(), rows, weight.cols}, outs);
    return out;
  }
  ThreadPool pool_{2};
};

TEST_P(Linear, matches_the_specification_at_odd_sizes) {
  const auto [tier, type] = GetParam();
  const std::int64_t block = dtype_info(type).block_size;
  std::vector<std::int64_t> widths{block, 3 * block};
  if (block == 1) widths = {1, 37, 64};
  for (const std::int64_t cols : widths) {
    for (const std::int64_t n : {1, 15, 16, 17, 33}) {
      const MadeWeight made = make_weight(type, 1, n, cols, static_cast<unsigned>(n * 1000 + cols));
      const auto weight = cpu::pack_weight(made.data, pool_, tier);
      const std::vector<float> bias = random_floats(static_cast<std::size_t>(n), 5);
      for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 9, 15, 16, 17, 35}) {
        std::vector<float> x = random_floats(static_cast<std::size_t>(rows * cols), static_cast<unsigned>(rows));
        const std::vector<float> out = multiply(*weight, x, rows, bias.data());
        std::vector<float> exact_x = takes_float_x(type) ? x : as_8_bit(x);
        std::vector<float> expected(out.size());
        ops::reference::linear({exact_x.data(), rows, cols}, made.floats.data(), bias.data(), {expected.data(), rows, n});
        for (std::size_t i = 0; i < out.size(); ++i) {
          // A sum of `cols` rounded products in any order errs by at most about cols * 2^-24 of the sum of magnitudes; types
          // that q2_k's f16 copy rounds err by 2^-11 of each weight.
          double magnitude = std::fabs(bias[i % static_cast<std::size_t>(n)]);
          for (std::int64_t k = 0; k < cols; ++k) {
            magnitude += std::fabs(double{exact_x[i / static_cast<std::size_t>(n) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(k)]} *
                                   made.floats[i % static_cast<std::size_t>(n) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(k)]);
          }
          // K-quants with a min subtract two parts that may each be larger than their difference.
          const double parts = type == DType::q4_k || type == DType::q5_k || type == DType::q4_1 || type == DType::q5_1 ? 40.0 : 1.0;
          const double relative = (type == DType::q2_k ? 0x1p-11 : 0.0) + parts * static_cast<double>(cols + 8) * 0x1p-24;
          ASSERT_NEAR(out[i], expected[i], relative * magnitude + 1e-9)
              << "rows " << rows << " n " << n << " cols " << cols << " at " << i;
        }
      }
    }
  }
}

TEST_P(Linear, holds_the_largest_codes_times_the_largest_activations) {
  const auto [tier, type] = GetParam();
  if (!is_quantized(type)) GTEST_SKIP() << "no codes";
  const std::int64_t cols = 512, n = 16, rows = 5;
  for (const int fill : {0x00, 0xff, 0x7f, 0x80}) {
    const MadeWeight made = make_weight(type, 1, n, cols, 3, fill);
    const auto weight = cpu::pack_weight(made.data, pool_, tier);
    std::vector<float> x(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < x.size(); ++i) {  // a sign for each row, and for pairs of k against each other
      const std::size_t row = i / static_cast<std::size_t>(cols);
      x[i] = row == 0 ? 1.0f : row == 1 ? -1.0f : row == 2 ? (i % 4 < 2 ? 1.0f : -1.0f) : row == 3 ? (i % 2 != 0 ? 1.0f : -1.0f) : (i % 16 < 8 ? 1.0f : -1.0f);
    }
    for (const std::int64_t first : {0, 1, 2, 3, 4}) {  // alone, in twos, in fours
      const std::int64_t count = first == 0 ? rows : 1;
      std::vector<float> part(x.begin() + first * cols, x.begin() + (first + count) * cols), expected(static_cast<std::size_t>(count * n));
      const std::vector<float> out = multiply(*weight, part, count);
      ops::reference::linear({part.data(), count, cols}, made.floats.data(), nullptr, {expected.data(), count, n});
      for (std::size_t i = 0; i < out.size(); ++i) {
        double magnitude = 0.0;
        for (std::int64_t k = 0; k < cols; ++k) magnitude += std::fabs(double{made.floats[i % static_cast<std::size_t>(n) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(k)]});
        const double relative = (type == DType::q2_k ? 0x1p-11 : 0.0) + 40.0 * static_cast<double>(cols + 8) * 0x1p-24;
        ASSERT_NEAR(out[i], expected[i], relative * magnitude + 1e-6) << "fill " << fill << " rows " << count << " from " << first << " at " << i;
      }
    }
  }
}

TEST_P(Linear, gives_a_row_the_same_bits_alone_and_among_others_on_any_threads) {
  const auto [tier, type] = GetParam();
  const std::int64_t cols = 512, n = 50, most = 65;
  const MadeWeight made = make_weight(type, 1, n, cols, 7);
  const auto weight = cpu::pack_weight(made.data, pool_, tier);
  std::vector<float> x = random_floats(static_cast<std::size_t>(most * cols), 11);
  const std::vector<float> all = multiply(*weight, x, most);
  for (const std::int64_t rows : {1, 2, 3, 6, 8, 13, 16, 33}) {
    for (const int threads : {1, 3}) {
      const std::int64_t first = most - rows;
      std::vector<float> part(x.begin() + first * cols, x.end());
      const std::vector<float> out = multiply(*weight, part, rows, nullptr, threads);
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(all[static_cast<std::size_t>(first * n) + i]))
            << "rows " << rows << " at " << i;
      }
    }
  }
}

TEST_P(Linear, reads_back_the_rows_that_the_file_holds) {
  const auto [tier, type] = GetParam();
  const std::int64_t cols = 512, n = 37;
  const MadeWeight made = make_weight(type, 1, n, cols, 9);
  const auto weight = cpu::pack_weight(made.data, pool_, tier);
  const std::vector<std::int32_t> ids{36, 0, 15, 16, 36, 5};
  std::vector<float> out(ids.size() * static_cast<std::size_t>(cols));
  cpu::embed_rows(pool_, *weight, ids.data(), {out.data(), static_cast<std::int64_t>(ids.size()), cols});
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float expected = made.floats[static_cast<std::size_t>(ids[i / 512]) * 512 + i % 512];
    if (type == DType::q2_k) {
      ASSERT_NEAR(out[i], expected, std::fabs(expected) * 0x1p-11 + 1e-7) << i;
    } else {
      ASSERT_EQ(out[i], expected) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(every_tier_and_type, Linear, testing::ValuesIn(cases()), case_name);

TEST(LinearOutputs, of_several_weights_of_different_types_share_one_call) {
  ThreadPool pool(2);
  const MadeWeight a = make_weight(DType::q4_0, 1, 40, 256, 1), b = make_weight(DType::f32, 1, 7, 256, 2);
  const auto wa = cpu::pack_weight(a.data, pool, CpuTier::scalar), wb = cpu::pack_weight(b.data, pool, CpuTier::scalar);
  std::vector<float> x = random_floats(3 * 256, 3);
  std::vector<float> both_a(3 * 40), both_b(3 * 7), only_a(3 * 40), only_b(3 * 7);
  const ops::LinearOut both[] = {{wa.get(), both_a.data()}, {wb.get(), both_b.data()}};
  cpu::linear(pool, CpuTier::scalar, {x.data(), 3, 256}, both);
  const ops::LinearOut first[] = {{wa.get(), only_a.data()}};
  const ops::LinearOut second[] = {{wb.get(), only_b.data()}};
  cpu::linear(pool, CpuTier::scalar, {x.data(), 3, 256}, first);
  cpu::linear(pool, CpuTier::scalar, {x.data(), 3, 256}, second);
  EXPECT_EQ(both_a, only_a);
  EXPECT_EQ(both_b, only_b);
}

TEST(PackedWeight, joins_slabs_and_separates_experts) {
  ThreadPool pool(2);
  MadeWeight made = make_weight(DType::q8_0, 3, 20, 64, 4);
  const std::uint64_t bytes = row_bytes(DType::q8_0, 64);
  made.data.slabs = {{made.bytes.data(), 5}, {made.bytes.data() + 5 * bytes, 54}, {made.bytes.data() + 59 * bytes, 1}};
  const auto weight = cpu::pack_weight(made.data, pool, CpuTier::scalar);
  std::vector<float> row(64);
  for (std::int64_t e = 0; e < 3; ++e) {
    for (std::int64_t r = 0; r < 20; ++r) {
      cpu::read_row(static_cast<const cpu::PackedWeight&>(*weight), e, r, row.data());
      for (std::size_t k = 0; k < 64; ++k) ASSERT_EQ(row[k], made.floats[static_cast<std::size_t>(e * 20 + r) * 64 + k]);
    }
  }
}

TEST(PackedWeight, refuses_slabs_that_do_not_add_up_and_types_without_weights) {
  ThreadPool pool(1);
  MadeWeight made = make_weight(DType::q8_0, 1, 4, 64, 4);
  made.data.slabs[0].rows = 3;
  EXPECT_THROW(cpu::pack_weight(made.data, pool, CpuTier::scalar), Error);
  made.data.slabs[0].rows = 4;
  made.data.type = DType::i32;
  EXPECT_THROW(cpu::pack_weight(made.data, pool, CpuTier::scalar), Error);
}

}  // namespace
}  // namespace heirloom::test
