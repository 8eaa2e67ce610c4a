// Where the steps of a prefill end on a backend whose rounding depends on how many rows share a step: vendor GEMMs choose
// their order of summation by the shape of the call, and the chunked delta rule works in blocks of 64 tokens. Such a backend
// gives equal bits for equal steps only. So its steps end at fixed positions, each holds one prompt alone, and a prompt
// resumes only where a step ends: then the remaining steps are those of a run from the beginning, bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace heirloom::engine {

/// Ends at 64, 128, 256, ... below `step` (a power of two from 64 on), where short shared prefixes lie, then at its multiples.
/// The largest end at or below `position`; 0 if there is none.
inline std::int64_t fixed_end_at_or_below(std::int64_t position, std::int64_t step) {
  if (position >= step) return position / step * step;
  return position < 64 ? 0 : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(position)));
}

/// The smallest end above `position`.
inline std::int64_t fixed_end_above(std::int64_t position, std::int64_t step) {
  if (position >= step) return (position / step + 1) * step;
  return std::max<std::int64_t>(64, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(position))) * 2);
}

}  // namespace heirloom::engine
