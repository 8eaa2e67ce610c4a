#include "image/positions.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace heirloom {
namespace {

/// Calls visit(h, w) for every patch of one frame, in order of merge blocks.
template <typename Visit>
void for_each_patch(std::int32_t h, std::int32_t w, std::int32_t merge, Visit visit) {
  HEIRLOOM_CHECK(merge > 0 && h % merge == 0 && w % merge == 0);
  for (std::int32_t block_h = 0; block_h < h; block_h += merge) {
    for (std::int32_t block_w = 0; block_w < w; block_w += merge) {
      for (std::int32_t y = block_h; y < block_h + merge; ++y) {
        for (std::int32_t x = block_w; x < block_w + merge; ++x) visit(y, x);
      }
    }
  }
}

/// How many values torch.arange(1 / side, 1, 1 / side) has, and value k of them in float32. torch fills whole
/// pairs of 8-lane vectors from a rounded base and the rest one by one in double, on every CPU alike.
std::int32_t boundary_count(std::int32_t side) {
  const double step = 1.0 / side;
  return static_cast<std::int32_t>(std::ceil((1.0 - step) / step));
}
float boundary(std::int32_t k, std::int32_t side) {
  const double step = 1.0 / side;
  if (k >= boundary_count(side) / 16 * 16) return static_cast<float>(step + step * k);
  const auto base = static_cast<float>(step + step * (k / 8 * 8));
  return static_cast<float>(base + step * (k % 8));
}

/// The two table rows around a coordinate and their weights.
struct AxisTaps {
  std::int32_t index[2];
  float weight[2];
};

AxisTaps axis_taps(std::int32_t position, std::int32_t size, std::int32_t side) {
  const float source =
      static_cast<float>(position) * static_cast<float>(side - 1) / static_cast<float>(std::max(size - 1, 1));
  const float low = std::floor(source);
  AxisTaps taps{};
  for (std::int32_t i = 0; i < 2; ++i) {
    taps.index[i] = std::clamp(static_cast<std::int32_t>(low) + i, 0, side - 1);
    taps.weight[i] = std::max(1.0f - std::abs(source - low - static_cast<float>(i)), 0.0f);
  }
  return taps;
}

/// Hands out the grids of one modality, a frame at a time.
class FrameGrids {
 public:
  FrameGrids(std::span<const GridThw> grids, bool by_frame) {
    for (const GridThw& grid : grids) {
      if (!by_frame) {
        frames_.push_back(grid);
      } else {
        frames_.insert(frames_.end(), static_cast<std::size_t>(std::max(grid.t, 0)),
                       GridThw{1, grid.h, grid.w});
      }
    }
  }
  const GridThw* next() { return at_ < frames_.size() ? &frames_[at_++] : nullptr; }
  bool done() const { return at_ == frames_.size(); }

 private:
  std::vector<GridThw> frames_;
  std::size_t at_ = 0;
};

}  // namespace

std::int32_t nearest_bucket(std::int32_t i, std::int32_t n, std::int32_t side) {
  // The exact bucket in integers, then to where the rounded boundaries put it (at most one step away).
  auto bucket = static_cast<std::int32_t>(std::int64_t{i} * side / n);
  const float coordinate = static_cast<float>(i) / static_cast<float>(n);
  while (bucket > 0 && coordinate < boundary(bucket - 1, side)) --bucket;
  while (bucket < boundary_count(side) && coordinate >= boundary(bucket, side)) ++bucket;
  return bucket;
}

std::vector<std::int32_t> nearest_position_ids(std::span<const GridHw> tiles, std::int32_t side) {
  std::vector<std::int32_t> ids;
  for (const GridHw& tile : tiles) {
    std::vector<std::int32_t> columns;
    for (std::int32_t x = 0; x < tile.w; ++x) columns.push_back(nearest_bucket(x, tile.w, side));
    for (std::int32_t y = 0; y < tile.h; ++y) {
      const std::int32_t row = nearest_bucket(y, tile.h, side) * side;
      for (const std::int32_t column : columns) ids.push_back(row + column);
    }
  }
  return ids;
}

WindowIndex window_index(std::span<const GridHw> tiles, std::int32_t window) {
  HEIRLOOM_CHECK(window > 0);
  WindowIndex result;
  result.cu_seqlens.push_back(0);
  std::int32_t start = 0;
  for (const GridHw& tile : tiles) {
    for (std::int32_t top = 0; top < tile.h; top += window) {
      for (std::int32_t left = 0; left < tile.w; left += window) {
        for (std::int32_t y = top; y < std::min(top + window, tile.h); ++y) {
          for (std::int32_t x = left; x < std::min(left + window, tile.w); ++x)
            result.index.push_back(start + y * tile.w + x);
        }
        result.cu_seqlens.push_back(static_cast<std::int32_t>(result.index.size()));
      }
    }
    start += tile.h * tile.w;
  }
  return result;
}

std::vector<std::int32_t> vision_cu_seqlens(std::span<const GridThw> grids) {
  std::vector<std::int32_t> starts{0};
  for (const GridThw& grid : grids) {
    for (std::int32_t t = 0; t < grid.t; ++t) starts.push_back(starts.back() + grid.h * grid.w);
  }
  return starts;
}

std::vector<std::int32_t> vision_cu_seqlens(std::span<const GridHw> tiles) {
  std::vector<std::int32_t> starts{0};
  for (const GridHw& tile : tiles) starts.push_back(starts.back() + tile.h * tile.w);
  return starts;
}

std::vector<std::int32_t> vision_position_ids(std::span<const GridThw> grids, std::int32_t merge_size) {
  std::vector<std::int32_t> ids;
  for (const GridThw& grid : grids) {
    for (std::int32_t t = 0; t < grid.t; ++t) {
      for_each_patch(grid.h, grid.w, merge_size, [&](std::int32_t h, std::int32_t w) {
        ids.push_back(h);
        ids.push_back(w);
      });
    }
  }
  return ids;
}

BilinearTaps bilinear_position_taps(std::span<const GridThw> grids, std::int32_t side,
                                    std::int32_t merge_size) {
  BilinearTaps taps;
  for (const GridThw& grid : grids) {
    for (std::int32_t t = 0; t < grid.t; ++t) {
      for_each_patch(grid.h, grid.w, merge_size, [&](std::int32_t h, std::int32_t w) {
        const AxisTaps rows = axis_taps(h, grid.h, side);
        const AxisTaps cols = axis_taps(w, grid.w, side);
        for (int i = 0; i < 2; ++i) {
          for (int j = 0; j < 2; ++j) {
            taps.indices.push_back(rows.index[i] * side + cols.index[j]);
            taps.weights.push_back(rows.weight[i] * cols.weight[j]);
          }
        }
      });
    }
  }
  return taps;
}

MropePositions mrope_positions(std::span<const TokenModality> modality, std::span<const GridThw> images,
                               std::span<const GridThw> videos, std::int32_t merge_size) {
  HEIRLOOM_CHECK(merge_size > 0);
  const std::size_t tokens = modality.size();
  MropePositions result;
  result.ids.resize(3 * tokens);
  FrameGrids image_grids(images, false);
  FrameGrids video_grids(videos, true);
  const auto set = [&](std::size_t token, std::int32_t t, std::int32_t h, std::int32_t w) {
    result.ids[token] = t;
    result.ids[tokens + token] = h;
    result.ids[2 * tokens + token] = w;
  };
  std::int32_t position = 0;
  for (std::size_t start = 0; start < tokens;) {
    std::size_t end = start + 1;
    while (end < tokens && modality[end] == modality[start]) ++end;
    if (modality[start] == TokenModality::text) {
      for (std::size_t token = start; token < end; ++token, ++position)
        set(token, position, position, position);
    } else {
      const bool video = modality[start] == TokenModality::video;
      const GridThw* grid = video ? video_grids.next() : image_grids.next();
      const char* name = video ? "video frame" : "image";
      if (grid == nullptr)
        fail(ErrorKind::usage, "prompt: more runs of {} placeholders than {}s", name, name);
      const std::int32_t rows = grid->h / merge_size;
      const std::int32_t cols = grid->w / merge_size;
      if (static_cast<std::int64_t>(end - start) != std::int64_t{grid->t} * rows * cols) {
        fail(ErrorKind::usage, "prompt: {} {} placeholders in a row at token {}, the {} has {} features",
             end - start, name, start, name, std::int64_t{grid->t} * rows * cols);
      }
      std::size_t token = start;
      for (std::int32_t t = 0; t < grid->t; ++t) {
        for (std::int32_t h = 0; h < rows; ++h) {
          for (std::int32_t w = 0; w < cols; ++w) set(token++, position + t, position + h, position + w);
        }
      }
      position += std::max(grid->h, grid->w) / merge_size;
    }
    start = end;
  }
  if (!image_grids.done() || !video_grids.done())
    fail(ErrorKind::usage, "prompt: fewer runs of placeholders than pictures");
  const std::int32_t last = result.ids.empty() ? -1 : *std::max_element(result.ids.begin(), result.ids.end());
  result.delta = last + 1 - static_cast<std::int32_t>(tokens);
  return result;
}

}  // namespace heirloom
