#include "image/decode.h"

#include <algorithm>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "image/decode_formats.h"

namespace heirloom {
namespace {

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool has_at(std::string_view text, std::size_t offset, std::string_view what) {
  return text.size() >= offset + what.size() && text.substr(offset, what.size()) == what;
}

/// Name of a picture (or other) format that people do send and that is not supported, "" if not recognised.
std::string_view unsupported_format(std::string_view text) {
  using namespace std::string_view_literals;
  if (has_at(text, 4, "ftyp")) {  // ISO base media file: the major brand says which
    const std::string_view brand = text.substr(8, 4);
    if (brand == "avif" || brand == "avis") return "AVIF";
    for (const auto heic : {"heic", "heix", "hevc", "hevx", "heim", "heis", "mif1", "msf1"}) {
      if (brand == heic) return "HEIC/HEIF";
    }
    return "a video (MP4 family)";
  }
  if (has_at(text, 0, "II*\0"sv) || has_at(text, 0, "MM\0*"sv)) return "TIFF";
  if (has_at(text, 0, "%PDF")) return "PDF";
  if (has_at(text, 0, "\0\0\1\0"sv)) return "ICO";
  if (has_at(text, 0, "8BPS")) return "Photoshop (PSD)";
  if (has_at(text, 0, "\xff\x0a") || has_at(text, 0, "\0\0\0\x0cJXL "sv)) return "JPEG XL";
  if (has_at(text, 0, "\0\0\0\x0cjP  "sv) || has_at(text, 0, "\xff\x4f\xff\x51")) return "JPEG 2000";
  const std::string_view start = text.substr(0, 1024);
  if (start.find("<svg") != std::string_view::npos) return "SVG";
  if (start.find("<html") != std::string_view::npos ||
      start.find("<!DOCTYPE html") != std::string_view::npos) {
    return "an HTML page";
  }
  return "";
}

std::string first_bytes(std::span<const std::byte> file) {
  std::string text;
  for (const std::byte value : file.first(std::min<std::size_t>(file.size(), 8))) {
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", std::to_integer<unsigned>(value));
  }
  return text;
}

/// The picture turned upright. Orientations 5..8 swap the sides (EXIF 2.3, tag 0x0112).
Image upright(Image source, int orientation) {
  if (orientation < 2 || orientation > 8) return source;
  const std::size_t width = source.width;
  const std::size_t height = source.height;
  const bool swaps = orientation >= 5;
  Image result = make_image(swaps ? height : width, swaps ? width : height);
  result.transparent_colour = source.transparent_colour;
  const std::size_t out_width = result.width;
  const std::size_t out_height = result.height;
  for (std::size_t y = 0; y < out_height; ++y) {
    for (std::size_t x = 0; x < out_width; ++x) {
      std::size_t from_x = x;
      std::size_t from_y = y;
      switch (orientation) {
        case 2:
          from_x = width - 1 - x;
          break;
        case 3:
          from_x = width - 1 - x;
          from_y = height - 1 - y;
          break;
        case 4:
          from_y = height - 1 - y;
          break;
        case 5:
          from_x = y;
          from_y = x;
          break;
        case 6:
          from_x = y;
          from_y = height - 1 - x;
          break;
        case 7:
          from_x = width - 1 - y;
          from_y = height - 1 - x;
          break;
        default:
          from_x = width - 1 - y;
          from_y = x;
          break;  // 8
      }
      const std::uint8_t* from = &source.rgb[(from_y * width + from_x) * 3];
      std::uint8_t* to = &result.rgb[(y * out_width + x) * 3];
      to[0] = from[0];
      to[1] = from[1];
      to[2] = from[2];
    }
  }
  return result;
}

DecodedFile decode_by_signature(std::span<const std::byte> file, const DecodeLimits& limits) {
  const std::string_view text = as_text(file);
  if (has_at(text, 0, "\x89PNG\r\n\x1a\n")) return decode_png(file, limits);
  if (has_at(text, 0, "\xff\xd8\xff")) return decode_jpeg(file, limits);
  if (has_at(text, 0, "RIFF") && has_at(text, 8, "WEBP")) return decode_webp(file, limits);
  if (has_at(text, 0, "GIF87a") || has_at(text, 0, "GIF89a")) return decode_gif(file, limits);
  if (has_at(text, 0, "BM")) return decode_bmp(file, limits);
  constexpr std::string_view kExpected = "expected PNG, JPEG, WebP, BMP or GIF";
  if (file.empty()) fail(ErrorKind::bad_file, "picture: empty file, {}", kExpected);
  if (const std::string_view format = unsupported_format(text); !format.empty()) {
    fail(ErrorKind::bad_file, "picture: found {}, {}; convert it first", format, kExpected);
  }
  fail(ErrorKind::bad_file, "picture: unknown format (first bytes {}), {}", first_bytes(file), kExpected);
}

}  // namespace

void check_picture_size(std::string_view format, std::uint64_t width, std::uint64_t height,
                        const DecodeLimits& limits) {
  if (width == 0 || height == 0) {
    fail(ErrorKind::bad_file, "{} picture: size {}x{}, expected at least 1x1", format, width, height);
  }
  if (width > limits.max_side || height > limits.max_side) {
    fail(ErrorKind::bad_file, "{} picture: {}x{}, a side is longer than the limit of {}; scale it down first",
         format, width, height, limits.max_side);
  }
  if (width * height > limits.max_pixels) {  // two 32-bit sides: cannot wrap
    fail(ErrorKind::bad_file, "{} picture: {}x{} is more than the limit of {} pixels; scale it down first",
         format, width, height, limits.max_pixels);
  }
}

void check_compression_ratio(std::string_view format, std::uint64_t units, std::uint64_t units_per_byte,
                             std::uint64_t file_bytes) {
  if (units / units_per_byte > file_bytes) {
    fail(ErrorKind::bad_file, "{} picture: truncated, {} bytes cannot hold a picture of this size", format,
         file_bytes);
  }
}

Image make_image(std::uint64_t width, std::uint64_t height) {
  Image image;
  image.width = static_cast<std::uint32_t>(width);
  image.height = static_cast<std::uint32_t>(height);
  image.rgb.resize(width * height * 3);
  return image;
}

Image decode_image(std::span<const std::byte> file, const DecodeLimits& limits) {
  try {
    DecodedFile decoded = decode_by_signature(file, limits);
    return upright(std::move(decoded.image), decoded.orientation);
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::does_not_fit, "picture: not enough memory to decode it");
  }
}

}  // namespace heirloom
