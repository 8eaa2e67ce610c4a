// Pixels to vision-tower input, exactly as the reference processors make it (torchvision backend, integers
// identical):
//   qwen       Qwen2VLImageProcessor: one resize to multiples of patch x merge, patches in merge-block order
//   minicpmv   MiniCPMV4_6ImageProcessor (LLaVA-UHD): an overview, and slices of a refined picture when it is
//   large
// and the placeholder text that stands for the picture in a prompt. Decoding is decode.h; position ids are
// positions.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/image.h"
#include "image/resize.h"

namespace heirloom {

enum class ImageProcessorKind : std::uint8_t { qwen, minicpmv };

/// How many patches make one MiniCPM-V token: 16x = window merger and projector, 4x = projector only.
enum class DownsampleMode : std::uint8_t { x16, x4 };

/// "16x" or "4x"; throws Error{usage} on anything else.
DownsampleMode parse_downsample_mode(std::string_view text);

/// The settings of preprocessor_config.json that matter, checked.
struct ImageProcessorConfig {
  ImageProcessorKind kind = ImageProcessorKind::qwen;
  std::uint32_t patch_size = 16;
  ResizeFilter filter = ResizeFilter::bicubic;
  bool do_rescale = true;
  bool do_normalize = true;
  double rescale_factor = 1.0 / 255.0;
  std::array<double, 3> image_mean{0.5, 0.5, 0.5};
  std::array<double, 3> image_std{0.5, 0.5, 0.5};
  // qwen
  std::uint32_t temporal_patch_size = 2;
  std::uint32_t merge_size = 2;
  std::uint64_t min_pixels = 65536;     // size.shortest_edge
  std::uint64_t max_pixels = 16777216;  // size.longest_edge
  // minicpmv
  std::uint32_t scale_resolution = 448;
  std::uint32_t max_slice_nums = 9;
  bool slice_mode = true;
  DownsampleMode downsample_mode = DownsampleMode::x16;
  bool use_image_id = true;

  /// From the text of preprocessor_config.json, of processor_config.json (its "image_processor" part), or of
  /// to_json. `source` is named in errors. Missing keys take the reference class's defaults. Throws
  /// Error{bad_file}.
  static ImageProcessorConfig from_json(std::string_view text, std::string_view source);
  /// JSON in preprocessor_config.json's own spelling; from_json reads it back to the same value.
  std::string to_json() const;

  /// Patches that make one token of this model.
  std::uint32_t patches_per_token() const;
  /// Bytes of a patch in ProcessedImage::pixels_u8: 3 x (temporal_patch_size) x patch_size x patch_size.
  std::size_t patch_bytes() const;
};

/// A rectangle of patches that the vision tower sees as one picture.
struct ImageTile {
  std::uint32_t grid_h = 0;  // patches
  std::uint32_t grid_w = 0;
  std::uint32_t tokens = 0;  // placeholders = features
  std::size_t first_patch = 0;

  std::size_t patches() const { return std::size_t{grid_h} * grid_w; }
};

struct ProcessedImage {
  // [patches, patch_bytes], tile after tile.
  //   qwen: patches in merge-block order; bytes c, t, y, x (both t equal for a still) = the dumps'
  //   vision.pixel_u8 minicpmv: patches of each tile in raster order; bytes c, y, x (reference_pixels gives
  //   the dumps' layout)
  std::vector<std::uint8_t> pixels_u8;
  std::vector<ImageTile> tiles;  // qwen: one; minicpmv: overview, then slices row by row
  std::uint32_t slice_rows = 0;  // minicpmv: 0 x 0 when not sliced
  std::uint32_t slice_cols = 0;
  // XXH3-128 of the decoded pixels and the settings: equal hashes give equal vision features.
  std::array<std::uint8_t, 16> content_hash{};

  std::size_t patches() const {
    return tiles.empty() ? 0 : tiles.back().first_patch + tiles.back().patches();
  }
  std::size_t tokens() const;
};

/// The whole preprocessing of one picture. Throws Error{bad_file} when the reference refuses it (qwen: a side
/// more than 200 times the other). Thread-safe.
ProcessedImage process_image(const Image& image, const ImageProcessorConfig& config);

/// Rescaled and normalised value of every byte per channel, by torchvision's float32 order of operations.
std::array<std::array<float, 256>, 3> normalize_table(const ImageProcessorConfig& config);

/// The dumps' order of `vision.pixel_u8` for the pictures of one prompt. qwen: patches one after the other.
/// minicpmv: [3, patch_size, all patches x patch_size], patches side by side.
std::vector<std::uint8_t> reference_pixels(std::span<const ProcessedImage> images,
                                           const ImageProcessorConfig& config);

/// Texts of the special tokens that stand for pictures (the same in every published tokenizer of these
/// families).
struct PlaceholderTokens {
  std::string image = "<|image_pad|>";
  std::string image_start = "<image>";
  std::string image_end = "</image>";
  std::string slice_start = "<slice>";
  std::string slice_end = "</slice>";
  std::string image_id_start = "<image_id>";
  std::string image_id_end = "</image_id>";
};

/// What replaces the template's single `tokens.image` of this picture: as many `tokens.image` as it has
/// features; minicpmv adds the tile marks, with slice rows joined by "\n", and the image id. `index` counts
/// the pictures of one prompt from 0. The text holds special tokens and must be tokenised with them allowed.
std::string placeholder_text(const ProcessedImage& image, const ImageProcessorConfig& config,
                             std::size_t index, const PlaceholderTokens& tokens = {});

/// Sizes only, without pixels (also the rule book of process_image).
struct PictureSize {
  std::uint32_t height = 0;
  std::uint32_t width = 0;

  bool operator==(const PictureSize&) const = default;
};

/// Qwen's smart_resize. Throws Error{bad_file} when one side is more than 200 times the other.
PictureSize qwen_resized(PictureSize size, const ImageProcessorConfig& config);

struct MiniCpmLayout {
  PictureSize overview;
  std::uint32_t rows = 0;  // 0 x 0 when not sliced
  std::uint32_t cols = 0;
  PictureSize refined;  // the picture that is cut into rows x cols slices; 0 x 0 when not sliced
};

/// MiniCPM-V's resize targets and slice grid.
MiniCpmLayout minicpm_layout(PictureSize size, const ImageProcessorConfig& config);

}  // namespace heirloom
