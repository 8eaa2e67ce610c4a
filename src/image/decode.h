// Picture files to pixels: PNG, JPEG, WebP, BMP and the first frame of a GIF. The format comes from the
// bytes, never from a name. The pixels are those of the reference loader (PIL 13 through transformers'
// load_image), quirks of its conversions included; decode_FORMAT.cc holds one format each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "image/image.h"

namespace heirloom {

struct DecodeLimits {
  // Pixels of the whole canvas, checked against the header before anything is allocated. The default is where
  // PIL itself refuses (twice its MAX_IMAGE_PIXELS of 89478485): 537 MB of RGB.
  std::uint64_t max_pixels = 178956970;
  // Longest side (libpng's own default): keeps the weight tables of a resize small. Only PNG and BMP can
  // claim more.
  std::uint32_t max_side = 1000000;
};

/// Decodes one picture. Throws Error{bad_file} for an unknown or unsupported format (named where it is
/// recognised: HEIC, AVIF, TIFF, SVG, ...), a damaged or truncated file, and a picture beyond `limits`.
/// Thread-safe.
Image decode_image(std::span<const std::byte> file, const DecodeLimits& limits = {});

}  // namespace heirloom
