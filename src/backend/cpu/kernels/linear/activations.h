// Activations as the panel kernels want them: rows in tiles of 32 (the last one shorter), quantised to ActBlock records
// or as floats, and the memory that holds them between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/cpu/kernels/linear/linear_kernels.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

/// Grows and is kept: no allocation once the largest call has been seen. 64-byte aligned.
class Scratch {
 public:
  std::byte* get(std::size_t bytes);
  template <typename T>
  T* get(std::int64_t count) {
    return reinterpret_cast<T*>(get(static_cast<std::size_t>(count) * sizeof(T)));
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::unique_ptr<Line[]> lines_;
  std::size_t bytes_ = 0;
};

/// A view of rows in tiles. Rows of one tile interleave: entry (step, row) of tile t lies at
/// data + t * 32 * row_bytes + (step * tile_rows(t) + row) * entry_bytes.
struct ActTiles {
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;  // k / 32 * 64, or k * 4
  int entry_bytes = 64;        // 64 = ActBlock, 4 = float

  int tile_rows(std::int64_t tile) const {
    const std::int64_t left = rows - tile * kMaxTileRows;
    return static_cast<int>(left < kMaxTileRows ? left : kMaxTileRows);
  }
  std::int64_t num_tiles() const { return (rows + kMaxTileRows - 1) / kMaxTileRows; }
  const std::byte* tile(std::int64_t index) const { return data + index * kMaxTileRows * row_bytes; }
  std::ptrdiff_t step_bytes(std::int64_t tile) const { return static_cast<std::ptrdiff_t>(tile_rows(tile)) * entry_bytes; }
};

constexpr std::int64_t integer_row_bytes(std::int64_t k) { return k / kBlock * static_cast<std::int64_t>(sizeof(ActBlock)); }
constexpr std::int64_t float_row_bytes(std::int64_t k) { return k * 4; }

/// Quantises the rows of x into tiles in `scratch`. x.cols % 32 == 0.
ActTiles quantize_tiles(ThreadPool& pool, const LinearKernels& kernels, ops::Matrix x, Scratch& scratch);
/// Rows of x as float tiles: a copy in `scratch`, or x itself if it is one row.
ActTiles float_tiles(ThreadPool& pool, ops::Matrix x, Scratch& scratch);

}  // namespace heirloom::cpu
