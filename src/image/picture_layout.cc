// Size rules of the two reference processors: smart_resize of image_processing_qwen2_vl.py, and
// find_best_resize, get_refine_size and get_sliced_grid of image_processing_minicpmv4_6.py. Python's
// arithmetic throughout: doubles, int() towards zero, round() half to even.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "image/processor.h"

namespace heirloom {
namespace {

/// Python's round(length / divisor), half to even (the default rounding mode).
std::int64_t rounded_ratio(double length, double divisor) {
  return static_cast<std::int64_t>(std::nearbyint(length / divisor));
}

std::uint32_t ensure_divide(double length, std::uint32_t divisor) {
  return static_cast<std::uint32_t>(
      std::max<std::int64_t>(rounded_ratio(length, divisor) * divisor, divisor));
}

/// A size of about scale_resolution^2 pixels (or the given one, if smaller and not to be enlarged) in whole
/// merge blocks.
PictureSize best_size(double height, double width, bool allow_upscale, const ImageProcessorConfig& config) {
  const double scale = config.scale_resolution;
  if (height * width > scale * scale || allow_upscale) {
    const double aspect_ratio = width / height;
    height = std::trunc(scale / std::sqrt(aspect_ratio));
    width = std::trunc(height * aspect_ratio);
  }
  const std::uint32_t block = config.patch_size * (config.downsample_mode == DownsampleMode::x4 ? 2 : 4);
  return {ensure_divide(height, block), ensure_divide(width, block)};
}

struct SliceGrid {
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
};

/// The grid of about area / scale_resolution^2 slices whose shape is closest to the picture's; 0 x 0 for a
/// small picture.
SliceGrid slice_grid(PictureSize size, const ImageProcessorConfig& config) {
  const double width = size.width;
  const double height = size.height;
  const double scale = config.scale_resolution;
  const double log_ratio = std::log(width / height);
  const double wanted = std::ceil(width * height / (scale * scale));
  const auto multiple =
      static_cast<std::uint32_t>(std::min(wanted, static_cast<double>(config.max_slice_nums)));
  if (!config.slice_mode || multiple <= 1) return {};
  SliceGrid best{1, 1};
  double least_error = std::numeric_limits<double>::infinity();
  for (const std::uint32_t slices : {multiple - 1, multiple, multiple + 1}) {
    if (slices == 1 || slices > config.max_slice_nums) continue;
    for (std::uint32_t rows = 1; rows <= slices; ++rows) {
      if (slices % rows != 0) continue;
      const std::uint32_t cols = slices / rows;
      const double error = std::abs(log_ratio - std::log(static_cast<double>(cols) / rows));
      if (error < least_error || (error == least_error && rows > best.rows)) {
        best = {rows, cols};
        least_error = error;
      }
    }
  }
  return best;
}

}  // namespace

PictureSize qwen_resized(PictureSize size, const ImageProcessorConfig& config) {
  const double height = size.height;
  const double width = size.width;
  const double ratio = std::max(height, width) / std::min(height, width);
  if (ratio > 200.0) {
    fail(ErrorKind::bad_file, "picture: {}x{}, one side is more than 200 times the other; crop it first",
         size.width, size.height);
  }
  const std::uint32_t factor = config.patch_size * config.merge_size;
  const double f = factor;
  const auto min_pixels = static_cast<double>(config.min_pixels);
  const auto max_pixels = static_cast<double>(config.max_pixels);
  double blocks_h = static_cast<double>(rounded_ratio(height, f));
  double blocks_w = static_cast<double>(rounded_ratio(width, f));
  const double area = blocks_h * f * (blocks_w * f);
  if (area > max_pixels) {
    const double beta = std::sqrt(height * width / max_pixels);
    blocks_h = std::max(1.0, std::floor(height / beta / f));
    blocks_w = std::max(1.0, std::floor(width / beta / f));
  } else if (area < min_pixels) {
    const double beta = std::sqrt(min_pixels / (height * width));
    blocks_h = std::ceil(height * beta / f);
    blocks_w = std::ceil(width * beta / f);
  }
  // A configuration may allow less than one block on a side (min_pixels 1): the reference would then fail on
  // an empty picture.
  if (blocks_h < 1.0 || blocks_w < 1.0) {
    fail(ErrorKind::bad_file, "picture: {}x{} is too small for this model's configuration", size.width,
         size.height);
  }
  return {static_cast<std::uint32_t>(blocks_h) * factor, static_cast<std::uint32_t>(blocks_w) * factor};
}

MiniCpmLayout minicpm_layout(PictureSize size, const ImageProcessorConfig& config) {
  const SliceGrid grid = slice_grid(size, config);
  MiniCpmLayout layout;
  layout.overview = best_size(size.height, size.width, grid.rows == 0, config);
  if (grid.rows == 0) return layout;
  layout.rows = grid.rows;
  layout.cols = grid.cols;
  const double slice_height = static_cast<double>(ensure_divide(size.height, grid.rows)) / grid.rows;
  const double slice_width = static_cast<double>(ensure_divide(size.width, grid.cols)) / grid.cols;
  const PictureSize slice = best_size(slice_height, slice_width, true, config);
  layout.refined = {slice.height * grid.rows, slice.width * grid.cols};
  return layout;
}

}  // namespace heirloom
