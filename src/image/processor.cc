#include "image/processor.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "base/check.h"

namespace heirloom {
namespace {

/// The picture as the reference processors see it: pixels of the single transparent colour are white.
Image with_white_background(const Image& image) {
  Image result{image.width, image.height, image.rgb, std::nullopt};
  const auto colour = *image.transparent_colour;
  for (std::size_t i = 0; i < result.rgb.size(); i += 3) {
    if (std::equal(colour.begin(), colour.end(), &result.rgb[i])) std::memset(&result.rgb[i], 255, 3);
  }
  return result;
}

using RowPlanes = std::array<const std::uint8_t*, 3>;

/// Copies row `y` of a tile, which begins at column `left` of the planes, into the tile's patches: bytes
/// c, t, y, x with every t equal, patches in order of merge blocks of `config.merge_size` (1 = raster order).
/// `patch` is config.patch_size, a constant for the common ones: a call of memcpy takes longer than 16 bytes.
template <typename PatchSize>
void place_row_as(PatchSize patch, const RowPlanes& planes, std::size_t left, std::size_t y,
                  const ImageTile& tile, const ImageProcessorConfig& config, std::uint8_t* pixels) {
  const std::size_t merge = config.merge_size;
  const std::size_t area = patch * patch;
  const std::size_t patch_bytes = config.patch_bytes();
  const std::size_t block_y = y / patch / merge * merge;
  // The first patch of the row in the first merge block, and this row of pixels in it.
  std::uint8_t* to =
      pixels + (tile.first_patch + block_y * tile.grid_w + (y / patch - block_y) * merge) * patch_bytes +
      y % patch * patch;
  for (std::size_t block_x = 0; block_x < tile.grid_w; block_x += merge) {
    for (std::size_t x = 0; x < merge; ++x, left += patch) {
      std::uint8_t* piece = to + (block_x * merge + x) * patch_bytes;
      for (const std::uint8_t* plane : planes) {
        for (std::size_t t = 0; t < config.temporal_patch_size; ++t, piece += area)
          std::memcpy(piece, plane + left, patch);
      }
    }
  }
}

void place_row(const RowPlanes& planes, std::size_t left, std::size_t y, const ImageTile& tile,
               const ImageProcessorConfig& config, std::uint8_t* pixels) {
  switch (config.patch_size) {
    case 14:
      return place_row_as(std::integral_constant<std::size_t, 14>{}, planes, left, y, tile, config, pixels);
    case 16:
      return place_row_as(std::integral_constant<std::size_t, 16>{}, planes, left, y, tile, config, pixels);
    default:
      return place_row_as(std::size_t{config.patch_size}, planes, left, y, tile, config, pixels);
  }
}

void append_tile(PictureSize size, const ImageProcessorConfig& config, ProcessedImage& out) {
  const std::uint32_t grid_h = size.height / config.patch_size;
  const std::uint32_t grid_w = size.width / config.patch_size;
  out.tiles.push_back({grid_h, grid_w, grid_h * grid_w / config.patches_per_token(), out.patches()});
}

/// Resizes the picture to `size`, which is the size of the tile.
void fill_tile(const Image& image, PictureSize size, const ImageTile& tile,
               const ImageProcessorConfig& config, ProcessedImage& out) {
  resize_rows(image, size.width, size.height, config.filter, [&](std::size_t y, const RowPlanes& planes) {
    place_row(planes, 0, y, tile, config, out.pixels_u8.data());
  });
}

void process_qwen(const Image& image, const ImageProcessorConfig& config, ProcessedImage& out) {
  const PictureSize size = qwen_resized({image.height, image.width}, config);
  append_tile(size, config, out);
  out.pixels_u8.resize(out.patches() * config.patch_bytes());
  fill_tile(image, size, out.tiles[0], config, out);
}

void process_minicpmv(const Image& image, const ImageProcessorConfig& config, ProcessedImage& out) {
  const MiniCpmLayout layout = minicpm_layout({image.height, image.width}, config);
  append_tile(layout.overview, config, out);
  out.slice_rows = layout.rows;
  out.slice_cols = layout.cols;
  PictureSize slice;
  if (layout.rows > 0) slice = {layout.refined.height / layout.rows, layout.refined.width / layout.cols};
  for (std::uint32_t i = 0; i < layout.rows * layout.cols; ++i) append_tile(slice, config, out);
  out.pixels_u8.resize(out.patches() * config.patch_bytes());
  fill_tile(image, layout.overview, out.tiles[0], config, out);
  if (layout.rows == 0) return;
  resize_rows(image, layout.refined.width, layout.refined.height, config.filter,
              [&](std::size_t y, const RowPlanes& planes) {
                const std::size_t first = 1 + y / slice.height * layout.cols;
                for (std::size_t col = 0; col < layout.cols; ++col) {
                  place_row(planes, col * slice.width, y % slice.height, out.tiles[first + col], config,
                            out.pixels_u8.data());
                }
              });
}

std::array<std::uint8_t, 16> content_hash(const Image& image, const ImageProcessorConfig& config) {
  const std::string settings = config.to_json();
  const XXH128_hash_t pixels = XXH3_128bits(image.rgb.data(), image.rgb.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, pixels);
  std::string key(reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest);
  key += fmt::format("|{}x{}|{}", image.width, image.height, settings);
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(key.data(), key.size()));
  std::array<std::uint8_t, 16> result{};
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), result.begin());
  return result;
}

void append_repeated(std::string& text, const std::string& piece, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) text += piece;
}

}  // namespace

std::size_t ProcessedImage::tokens() const {
  return std::accumulate(tiles.begin(), tiles.end(), std::size_t{0},
                         [](std::size_t sum, const ImageTile& tile) { return sum + tile.tokens; });
}

ProcessedImage process_image(const Image& image, const ImageProcessorConfig& config) {
  HEIRLOOM_CHECK(image.width > 0 && image.height > 0 &&
                 image.rgb.size() == std::size_t{image.width} * image.height * 3);
  if (image.transparent_colour) return process_image(with_white_background(image), config);
  ProcessedImage out;
  if (config.kind == ImageProcessorKind::qwen) {
    process_qwen(image, config, out);
  } else {
    process_minicpmv(image, config, out);
  }
  out.content_hash = content_hash(image, config);
  return out;
}

std::array<std::array<float, 256>, 3> normalize_table(const ImageProcessorConfig& config) {
  std::array<std::array<float, 256>, 3> table{};
  for (std::size_t c = 0; c < 3; ++c) {
    auto mean = static_cast<float>(config.image_mean[c]);
    auto std = static_cast<float>(config.image_std[c]);
    if (config.do_rescale && config.do_normalize) {  // rescaling is folded into mean and deviation
      const auto inverse = static_cast<float>(1.0 / config.rescale_factor);
      mean *= inverse;
      std *= inverse;
    }
    for (std::size_t value = 0; value < 256; ++value) {
      auto x = static_cast<float>(value);
      if (config.do_normalize) {
        x = (x - mean) / std;
      } else if (config.do_rescale) {
        x *= static_cast<float>(config.rescale_factor);
      }
      table[c][value] = x;
    }
  }
  return table;
}

std::vector<std::uint8_t> reference_pixels(std::span<const ProcessedImage> images,
                                           const ImageProcessorConfig& config) {
  std::vector<std::uint8_t> joined;
  for (const ProcessedImage& image : images)
    joined.insert(joined.end(), image.pixels_u8.begin(), image.pixels_u8.end());
  if (config.kind == ImageProcessorKind::qwen) return joined;
  const std::size_t patch = config.patch_size;
  const std::size_t patches = joined.size() / config.patch_bytes();
  std::vector<std::uint8_t> result(joined.size());  // [3, patch, patches, patch]
  for (std::size_t p = 0; p < patches; ++p) {
    for (std::size_t row = 0; row < 3 * patch; ++row) {
      std::memcpy(&result[(row * patches + p) * patch], &joined[(p * 3 * patch + row) * patch], patch);
    }
  }
  return result;
}

std::string placeholder_text(const ProcessedImage& image, const ImageProcessorConfig& config,
                             std::size_t index, const PlaceholderTokens& tokens) {
  std::string text;
  if (config.kind == ImageProcessorKind::qwen) {
    append_repeated(text, tokens.image, image.tokens());
    return text;
  }
  if (config.use_image_id) text += tokens.image_id_start + std::to_string(index) + tokens.image_id_end;
  text += tokens.image_start;
  append_repeated(text, tokens.image, image.tiles.at(0).tokens);
  text += tokens.image_end;
  std::size_t tile = 1;
  for (std::uint32_t row = 0; row < image.slice_rows; ++row) {
    if (row > 0) text += "\n";
    for (std::uint32_t col = 0; col < image.slice_cols; ++col) {
      text += tokens.slice_start;
      append_repeated(text, tokens.image, image.tiles.at(tile++).tokens);
      text += tokens.slice_end;
    }
  }
  return text;
}

}  // namespace heirloom
