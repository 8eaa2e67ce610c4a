// Picks one of the four kernel tables by tier, and the grain that keeps small loops on the calling thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/cpu_features.h"

namespace heirloom::cpu {

/// `tables`: scalar, ssse3, avx2, avx512. The tiers above avx512 add integer instructions, which these ops do not use.
template <typename Table>
const Table& tier_table(const Table (&tables)[4], CpuTier tier) {
  return tables[std::min(static_cast<int>(tier), 3)];
}

/// Rows of `cols` elements that make one piece of a parallel loop: about 16 Ki elements, some 3 us, which is where a second
/// thread begins to pay for waking it.
inline std::int64_t rows_grain(std::int64_t cols) { return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, cols)); }

}  // namespace heirloom::cpu
