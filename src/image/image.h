// A decoded picture: what Hugging Face's load_image gives (PIL decode, EXIF orientation applied, converted to
// RGB with any alpha dropped), plus the one thing that the reference processors still know about it
// afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace heirloom {

struct Image {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::vector<std::uint8_t> rgb;  // [height, width, 3], row-major
  // PIL's convert("RGB") keeps a single transparent colour (PNG tRNS, GIF) in the picture's info, and the
  // processors then paint every pixel of exactly this colour white before they resize. Real alpha channels
  // leave nothing here.
  std::optional<std::array<std::uint8_t, 3>> transparent_colour;
};

}  // namespace heirloom
