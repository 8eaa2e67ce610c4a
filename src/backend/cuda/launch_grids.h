// Grids of kernels that go on in a stride loop where work is more than blocks, and how many rows of attention's scores exist at once.
#pragma once

#include <algorithm>
#include <cstdint>

namespace heirloom::cuda {

constexpr std::int64_t kGridMost = 65535;  // an axis, compute capability 2.0

/// A block a row.
inline unsigned row_grid(std::int64_t rows) { return static_cast<unsigned>(std::clamp<std::int64_t>(rows, 1, kGridMost)); }
/// A thread a value, 256 a block.
inline unsigned map_grid(std::uint64_t n) { return row_grid(static_cast<std::int64_t>((n + 255) / 256)); }

/// Rows of `cols` scores of each of `heads` heads, of at most `rows`, that fit 96 MiB; one at least.
inline int rows_of_scores(int rows, int cols, int heads) {
  constexpr std::int64_t kScoreFloats = std::int64_t{24} << 20;
  return static_cast<int>(std::clamp<std::int64_t>(kScoreFloats / (static_cast<std::int64_t>(cols) * heads), 1, std::max(rows, 1)));
}

}  // namespace heirloom::cuda
