// What the picture tests share to make pictures and to look at them.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <vector>

#include "image/image.h"
#include "image/resize.h"

namespace heirloom::test {

/// The same drawing as make_layouts.py's.
inline Image drawing(std::uint32_t width, std::uint32_t height) {
  Image image{width, height, std::vector<std::uint8_t>(std::size_t{width} * height * 3), {}};
  std::uint8_t* to = image.rgb.data();
  for (std::uint32_t y = 0; y < height; ++y) {
    for (std::uint32_t x = 0; x < width; ++x, to += 3) {
      to[0] = static_cast<std::uint8_t>((x * 7 + y * 13) ^ (x * y >> 3));
      to[1] = static_cast<std::uint8_t>(x * 3 + (y >> 1));
      to[2] = static_cast<std::uint8_t>((x ^ y) * 5);
    }
  }
  return image;
}

template <typename Bytes>
std::uint32_t crc32_of(const Bytes& bytes) {
  return static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

/// [height, width, 3] of the resized picture.
inline std::vector<std::uint8_t> resized(const Image& source, std::uint32_t width, std::uint32_t height,
                                         ResizeFilter filter) {
  std::vector<std::uint8_t> rgb;
  resize_rows(source, width, height, filter, [&](std::size_t y, const auto& planes) {
    EXPECT_EQ(rgb.size(), y * width * 3);
    for (std::size_t x = 0; x < width; ++x) {
      for (const std::uint8_t* plane : planes) rgb.push_back(plane[x]);
    }
  });
  return rgb;
}

}  // namespace heirloom::test
