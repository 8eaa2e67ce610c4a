// Vision attention on every tier of this machine: against the scalar specification at odd segment lengths and head sizes,
// and segments that do not see each other.
#include <gtest/gtest.h>

#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "kernels/op_cases.h"
#include "ops/reference.h"

namespace heirloom::test {
namespace {

using cpu::CpuBackend;

struct SegmentCase {
  SegmentCase(int num_heads, int dim, std::vector<std::int32_t> ends, bool rotate, std::uint32_t seed)
      : heads(num_heads), d(dim), segments(std::move(ends)), n(segments.back()) {
    q = random_floats(std::int64_t{n} * heads * d, seed, 2);
    k = random_floats(std::int64_t{n} * heads * d, seed + 1, 2);
    v = random_floats(std::int64_t{n} * heads * d, seed + 2);
    if (!rotate) return;
    for (int i = 0; i < n * (d / 2); ++i) {
      cos.push_back(std::cos(0.37f * static_cast<float>(i)));
      sin.push_back(std::sin(0.37f * static_cast<float>(i)));
    }
  }
  template <typename Op>
  std::vector<float> run(const Op& op) {
    std::vector<float> out(q.size());
    op(matrix(q, n), matrix(k, n), matrix(v, n), heads, std::span<const std::int32_t>(segments), cos.empty() ? nullptr : cos.data(),
       sin.empty() ? nullptr : sin.data(), matrix(out, n));
    return out;
  }
  int heads, d;
  std::vector<std::int32_t> segments;
  int n;
  std::vector<float> q, k, v, cos, sin;
};

class segment_attention : public testing::TestWithParam<CpuTier> {};

TEST_P(segment_attention, matches_the_specification) {
  CpuBackend cpu({.threads = 2, .tier = GetParam(), .profiler = nullptr});
  for (const int d : {16, 32, 36, 64, 72, 80}) {
    for (const bool rotate : {false, true}) {
      for (const std::vector<std::int32_t>& segments :
           {std::vector<std::int32_t>{0, 1}, {0, 4, 8, 12}, {0, 63, 64, 129}, {0, 300}, {0, 257, 260}}) {
        SegmentCase c(2, d, segments, rotate, 100);
        const std::vector<float> expected = c.run([](auto... args) { ops::reference::segment_attention(args...); });
        const std::vector<float> out = c.run([&](auto... args) { cpu.segment_attention(args...); });
        expect_close(out, expected, 1e-5, std::to_string(d) + " dims, " + std::to_string(segments.size() - 1) + " segments");
      }
    }
  }
}

TEST_P(segment_attention, many_heads_are_done_in_groups) {
  // 2 x 1000 x 80 + 1008 x 72 floats a head: 4 Mi floats hold 18 heads, so that 20 need a second group.
  SegmentCase c(20, 72, {0, 1000}, true, 200);
  CpuBackend cpu({.threads = 3, .tier = GetParam(), .profiler = nullptr});
  const std::vector<float> out = c.run([&](auto... args) { cpu.segment_attention(args...); });
  // The specification is slow: one head of the first group and one of the second stand for all.
  for (const int head : {0, 19}) {
    SegmentCase single(1, 72, {0, 1000}, true, 0);
    std::vector<float> expected_rows, rows;
    const auto pick = [&](const std::vector<float>& from, std::vector<float>& to) {
      for (std::size_t r = 0; r < 1000; ++r) {
        for (std::size_t i = 0; i < 72; ++i) to[r * 72 + i] = from[(r * 20 + static_cast<std::size_t>(head)) * 72 + i];
      }
    };
    rows.resize(72000);
    pick(c.q, single.q);
    pick(c.k, single.k);
    pick(c.v, single.v);
    pick(out, rows);
    expect_close(rows, single.run([](auto... args) { ops::reference::segment_attention(args...); }), 1e-5, "head " + std::to_string(head));
  }
}

TEST_P(segment_attention, segments_and_threads_do_not_change_the_bits) {
  SegmentCase c(3, 72, {0, 70, 71, 340}, true, 300);
  CpuBackend one({.threads = 1, .tier = GetParam(), .profiler = nullptr});
  const std::vector<float> whole = c.run([&](auto... args) { one.segment_attention(args...); });
  for (const int threads : {2, 3, 7}) {
    CpuBackend cpu({.threads = threads, .tier = GetParam(), .profiler = nullptr});
    EXPECT_EQ(c.run([&](auto... args) { cpu.segment_attention(args...); }), whole);
  }
  // The other segments full of infinities: the last one must not notice.
  for (std::size_t i = 0; i < 71 * 3 * 72; ++i) c.q[i] = c.k[i] = c.v[i] = std::numeric_limits<float>::infinity();
  const std::vector<float> poisoned = c.run([&](auto... args) { one.segment_attention(args...); });
  EXPECT_TRUE(std::equal(whole.begin() + 71 * 3 * 72, whole.end(), poisoned.begin() + 71 * 3 * 72));
}

INSTANTIATE_TEST_SUITE_P(tiers, segment_attention, testing::ValuesIn(supported_tiers()), tier_name);

}  // namespace
}  // namespace heirloom::test
