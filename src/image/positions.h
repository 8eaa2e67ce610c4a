// Integer index tables of the vision towers and of text M-RoPE, as transformers' vision_utils.py and
// get_rope_index make them. Pure arithmetic on patch grids: no tensors, no weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace heirloom {

/// Patches of one tile.
struct GridHw {
  std::int32_t h = 0;
  std::int32_t w = 0;
};

/// Patches of one picture (t = 1) or video (t = frames).
struct GridThw {
  std::int32_t t = 1;
  std::int32_t h = 0;
  std::int32_t w = 0;
};

/// Bucket of coordinate i of n (0 <= i < n) on a table of `side`, as the reference operator has it:
/// torch.bucketize of float32 i / n on torch.arange(1 / side, 1, 1 / side). For the real table (side 70) that
/// is floor(i * side / n) for every n of the kit; on some other sides (19, 23, 25, ...) rounding of the
/// boundaries moves single coordinates down by one.
std::int32_t nearest_bucket(std::int32_t i, std::int32_t n, std::int32_t side);

/// MiniCPM-V (SigLIP2): row of the side x side position table for each patch, tiles in raster order one after
/// the other.
std::vector<std::int32_t> nearest_position_ids(std::span<const GridHw> tiles, std::int32_t side);

struct WindowIndex {
  std::vector<std::int32_t> index;       // [patches] gather order: window by window, raster order inside
  std::vector<std::int32_t> cu_seqlens;  // [windows + 1] starts of the windows in that order
};

/// MiniCPM-V's window merger: windows of window x window patches; windows at an odd edge are smaller.
WindowIndex window_index(std::span<const GridHw> tiles, std::int32_t window = 2);

/// Attention segments of a tower: starts of each frame (each tile), [segments + 1].
std::vector<std::int32_t> vision_cu_seqlens(std::span<const GridThw> grids);
std::vector<std::int32_t> vision_cu_seqlens(std::span<const GridHw> tiles);

/// Qwen tower rotary ids: (h, w) of every patch in merge-block order, [patches, 2].
std::vector<std::int32_t> vision_position_ids(std::span<const GridThw> grids, std::int32_t merge_size);

struct BilinearTaps {
  std::vector<std::int32_t> indices;  // [patches, 4] rows of the side x side position table
  std::vector<float> weights;         // [patches, 4]
};

/// Qwen tower positions: bilinear interpolation with aligned corners, patches in merge-block order; float32
/// in the reference's order.
BilinearTaps bilinear_position_taps(std::span<const GridThw> grids, std::int32_t side,
                                    std::int32_t merge_size);

enum class TokenModality : std::uint8_t { text = 0, image = 1, video = 2 };

struct MropePositions {
  std::vector<std::int32_t> ids;  // [3, tokens]: rows t, h, w
  std::int32_t delta = 0;         // position of token n after the prompt = n + delta
};

/// Qwen3.5 text positions of a whole prompt. `modality` is per token (the placeholders are image or video).
/// Each run of image tokens takes the next of `images`; a video is one run per frame, each taking one frame
/// of the next of `videos`. Throws Error{usage} when runs and grids do not match in number or length.
MropePositions mrope_positions(std::span<const TokenModality> modality, std::span<const GridThw> images,
                               std::span<const GridThw> videos, std::int32_t merge_size);

}  // namespace heirloom
