// What kernel tests share: fixed random data, comparison with a tolerance scaled by magnitude, the tiers of this CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "ops/backend.h"

namespace heirloom::test {

/// Normal values of the given spread; the same for the same seed everywhere.
inline std::vector<float> random_floats(std::int64_t n, std::uint32_t seed, float spread = 1.0f) {
  std::mt19937 engine(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) {
    // Sum of uniforms: std::normal_distribution differs between standard libraries.
    float sum = 0;
    for (int i = 0; i < 6; ++i) sum += static_cast<float>(engine()) * 0x1p-32f - 0.5f;
    value = sum * 1.4142135f * spread;
  }
  return values;
}

inline ops::Matrix matrix(std::vector<float>& values, std::int64_t rows) {
  return {values.data(), rows, rows == 0 ? 0 : static_cast<std::int64_t>(values.size()) / rows};
}

/// Tiers that this machine can run.
inline std::vector<CpuTier> supported_tiers() {
  std::vector<CpuTier> tiers;
  for (const CpuTier tier : kCpuTiers) {
    if (tier <= best_cpu_tier()) tiers.push_back(tier);
  }
  return tiers;
}

inline std::string tier_name(const testing::TestParamInfo<CpuTier>& info) {
  return std::string(cpu_tier_name(info.param));
}

/// |actual - expected| <= tolerance * max(floor, max |expected|) for each element.
inline void expect_close(std::span<const float> actual, std::span<const float> expected, double tolerance,
                         const std::string& what, double floor = 0.0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = floor, worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!(error <= worst)) {  // a NaN ends here too
      worst = error;
      where = i;
    }
  }
  EXPECT_LE(worst, tolerance * largest) << what << " at " << where << " of " << actual.size() << ": " << actual[where]
                                        << " instead of " << expected[where];
  EXPECT_FALSE(std::isnan(worst)) << what << " at " << where;
}

}  // namespace heirloom::test
