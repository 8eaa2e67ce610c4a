// Where the steps of a prefill end on a backend whose rounding depends on how many rows share a step: vendor GEMMs choose
// their order of summation by the shape of the call, and the chunked delta rule works in blocks of 64 tokens. Such a backend
// gives equal bits for equal steps only. So its steps end at fixed positions, each holds one prompt alone, and a prompt
// resumes only where a step ends: then the remaining steps are those of a run from the beginning, bit for bit.
#pragma once

#include <cstdint>

namespace heirloom::engine {

/// The first step ends here, so that short shared prefixes help. No more than one such end: on a large GPU a step of 64 rows takes
/// nearly as long as one of 512 (0.8B on an H200: 4.5 and 7.7 ms).
inline constexpr std::int64_t kFirstFixedEnd = 64;

/// Ends are at kFirstFixedEnd and at multiples of `step` (>= 64). The largest one at or below `position`; 0 if there is none.
inline std::int64_t fixed_end_at_or_below(std::int64_t position, std::int64_t step) {
  if (position >= step) return position / step * step;
  return position < kFirstFixedEnd ? 0 : kFirstFixedEnd;
}

/// The smallest end above `position`.
inline std::int64_t fixed_end_above(std::int64_t position, std::int64_t step) {
  return position < kFirstFixedEnd ? kFirstFixedEnd : (position / step + 1) * step;
}

}  // namespace heirloom::engine
