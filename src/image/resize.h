// The antialiased resize of torchvision for uint8 pictures, bit for bit: a horizontal pass rounded to uint8,
// then a vertical one, with 16-bit fixed-point weights (ATen's UpSampleKernelAVXAntialias). The reference
// processors resize with it. Rows come out one by one as planes, which is what patches are made of: no
// resized picture is ever stored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "image/image.h"

namespace heirloom {

enum class ResizeFilter : std::uint8_t {
  bilinear,  // triangle, support 1
  bicubic,   // Keys' kernel with a = -0.5, support 2
};

/// Row `y` of a resized picture: `width` bytes of red, of green and of blue, valid during the call only.
using RowSink = std::function<void(std::size_t y, const std::array<const std::uint8_t*, 3>& planes)>;

/// Scales `source` to width x height (all sides >= 1) and hands the rows to `sink`, top to bottom. Both
/// filters widen by the reduction factor. transparent_colour is not looked at: the processors paint it before
/// they resize. Throws std::bad_alloc, and what `sink` throws.
void resize_rows(const Image& source, std::uint32_t width, std::uint32_t height, ResizeFilter filter,
                 const RowSink& sink);

}  // namespace heirloom
