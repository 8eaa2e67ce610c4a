// The antialiased resize of torchvision for uint8 pictures, bit for bit: a horizontal pass rounded to uint8,
// then a vertical one, with 16-bit fixed-point weights (ATen's UpSampleKernelAVXAntialias). The reference
// processors resize with it.
#pragma once

#include <cstdint>

#include "image/image.h"

namespace heirloom {

enum class ResizeFilter : std::uint8_t {
  bilinear,  // triangle, support 1
  bicubic,   // Keys' kernel with a = -0.5, support 2
};

/// `source` scaled to width x height (all sides >= 1). Both filters widen by the reduction factor. Keeps
/// transparent_colour out: the processors paint it before they resize. Throws std::bad_alloc only.
Image resize(const Image& source, std::uint32_t width, std::uint32_t height, ResizeFilter filter);

}  // namespace heirloom
