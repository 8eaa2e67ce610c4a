// Internal to image/: the decoders behind decode_image, and what they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "image/decode.h"
#include "image/image.h"

namespace heirloom {

/// A decoded picture before its EXIF orientation is applied.
struct DecodedFile {
  Image image;
  int orientation = 1;  // EXIF 1..8; anything else means 1
};

// Each expects a file that starts with its format's signature.
DecodedFile decode_png(std::span<const std::byte> file, const DecodeLimits& limits);
DecodedFile decode_jpeg(std::span<const std::byte> file, const DecodeLimits& limits);
DecodedFile decode_webp(std::span<const std::byte> file, const DecodeLimits& limits);
DecodedFile decode_bmp(std::span<const std::byte> file, const DecodeLimits& limits);
DecodedFile decode_gif(std::span<const std::byte> file, const DecodeLimits& limits);

/// Throws Error{bad_file} when width x height is zero or above the limit. Call it before allocating.
void check_picture_size(std::string_view format, std::uint64_t width, std::uint64_t height,
                        const DecodeLimits& limits);

/// Throws Error{bad_file} "truncated" when `file_bytes` of this format cannot possibly hold that many units
/// of data. Spares the allocation for a small file with a large header.
void check_compression_ratio(std::string_view format, std::uint64_t units, std::uint64_t units_per_byte,
                             std::uint64_t file_bytes);

/// The rgb buffer of a checked size, all zero.
Image make_image(std::uint64_t width, std::uint64_t height);

}  // namespace heirloom
