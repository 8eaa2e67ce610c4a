#include "backend/cpu/kernels/linear/activations.h"

namespace heirloom::cpu {
namespace {

// Below this many values a loop is done before another thread wakes.
constexpr std::int64_t kParallelValues = 32768;

template <typename Fn>
void over_rows(ThreadPool& pool, ops::Matrix x, const Fn& fn) {
  if (x.rows * x.cols < kParallelValues) {
    fn(std::int64_t{0}, x.rows);
  } else {
    pool.parallel_for(x.rows, kMaxTileRows, fn);
  }
}

}  // namespace

std::byte* Scratch::get(std::size_t bytes) {
  if (bytes > bytes_) {
    lines_.reset();
    const std::size_t lines = (bytes + 63) / 64;
    lines_ = std::make_unique_for_overwrite<Line[]>(lines);
    bytes_ = lines * 64;
  }
  return lines_ == nullptr ? nullptr : lines_[0].bytes;
}

ActTiles quantize_tiles(ThreadPool& pool, const LinearKernels& kernels, ops::Matrix x, Scratch& scratch) {
  ActTiles tiles{nullptr, x.rows, integer_row_bytes(x.cols), 64};
  std::byte* data = scratch.get(static_cast<std::size_t>(x.rows * tiles.row_bytes));
  tiles.data = data;
  over_rows(pool, x, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t tile = r / kMaxTileRows;
      auto* first = reinterpret_cast<ActBlock*>(data + tile * kMaxTileRows * tiles.row_bytes) + r % kMaxTileRows;
      kernels.quantize_row(x.data + r * x.cols, x.cols, first, tiles.tile_rows(tile));
    }
  });
  return tiles;
}

ActTiles float_tiles(ThreadPool& pool, ops::Matrix x, Scratch& scratch) {
  ActTiles tiles{reinterpret_cast<const std::byte*>(x.data), x.rows, float_row_bytes(x.cols), 4};
  if (x.rows == 1) return tiles;
  float* data = scratch.get<float>(x.rows * x.cols);
  tiles.data = reinterpret_cast<const std::byte*>(data);
  over_rows(pool, x, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += kMaxTileRows) {
      const int rows = tiles.tile_rows(first / kMaxTileRows);
      float* to = data + first * x.cols;
      for (std::int64_t k = 0; k < x.cols; ++k) {
        for (int r = 0; r < rows; ++r) *to++ = x.data[(first + r) * x.cols + k];
      }
    }
  });
  return tiles;
}

}  // namespace heirloom::cpu
