// What decode_image refuses, and how: sizes from the header before anything is allocated (row I08 of the
// handed cases), truncated and damaged files, formats it does not know.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "heirloom/error.h"
#include "image/decode.h"
#include "image/reference_files.h"
#include "support/golden.h"

namespace heirloom {
namespace {

using namespace std::string_literals;
using test::golden;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string error_of(const std::string& file, const DecodeLimits& limits = {}) {
  try {
    decode_image(bytes_of(file), limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_file);
    return error.what();
  }
  return "no error";
}

std::string picture(const std::string& name) {
  const auto bytes = test::read_bytes(golden("pictures/" + name));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string big_endian(std::uint32_t value, int size) {
  std::string text;
  for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xff);
  return text;
}

std::string little_endian(std::uint32_t value, int size) {
  const std::string text = big_endian(value, size);
  return {text.rbegin(), text.rend()};
}

std::string png_header(std::uint32_t width, std::uint32_t height) {
  const std::string body = "IHDR" + big_endian(width, 4) + big_endian(height, 4) + "\x08\x02\0\0\0"s;
  std::uint32_t crc = 0xffffffffu;
  for (const char c : body) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return "\x89PNG\r\n\x1a\n"s + big_endian(13, 4) + body + big_endian(~crc, 4) +
         "\0\0\0\0IDAT\x35\xaf\x06\x1e"s;
}

/// The picture's JPEG with another size in its frame header.
std::string jpeg_of_size(std::uint32_t width, std::uint32_t height) {
  std::string file = picture("rgb420.jpg");
  const std::size_t frame = file.find("\xff\xc0");
  file.replace(frame + 5, 4, big_endian(height, 2) + big_endian(width, 2));
  return file;
}

std::string bmp_header(std::uint32_t width, std::uint32_t height) {
  return "BM"s + little_endian(54, 4) + little_endian(0, 4) + little_endian(54, 4) + little_endian(40, 4) +
         little_endian(width, 4) + little_endian(height, 4) + little_endian(1, 2) + little_endian(24, 2) +
         std::string(24, '\0');
}

std::string webp_canvas(std::uint32_t width, std::uint32_t height) {
  std::string file = picture("animated.webp");
  file.replace(file.find("VP8X") + 12, 6, little_endian(width - 1, 3) + little_endian(height - 1, 3));
  return file;
}

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(decode_errors, pixel_limit_is_checked_on_the_header_before_anything_is_allocated) {
  const long before = peak_kilobytes();
  EXPECT_NE(error_of(png_header(60000, 60000)).find("60000x60000 is more than the limit"), std::string::npos);
  EXPECT_NE(error_of(jpeg_of_size(65535, 65535)).find("65535x65535 is more than the limit"),
            std::string::npos);
  EXPECT_NE(error_of(jpeg_of_size(65000, 65000)).find("65000x65000 is more than the limit"),
            std::string::npos);
  EXPECT_NE(error_of(bmp_header(60000, 60000)).find("60000x60000 is more than the limit"), std::string::npos);
  EXPECT_NE(
      error_of("GIF89a" + little_endian(60000, 2) + little_endian(60000, 2) + picture("plain.gif").substr(10))
          .find("60000x60000 is more"),
      std::string::npos);
  EXPECT_NE(error_of(webp_canvas(16384, 16384)).find("16384x16384 is more than the limit"),
            std::string::npos);
  // The side alone, and sizes whose product would wrap in 32 or 64 bits.
  EXPECT_NE(error_of(png_header(0x7fffffff, 1)).find("a side is longer"), std::string::npos);
  EXPECT_NE(error_of(png_header(0x7fffffff, 0x7fffffff)).find("longer"), std::string::npos);
  EXPECT_NE(error_of(bmp_header(0xffffffff, 0xffffffff)).find("longer"), std::string::npos);
  EXPECT_NE(error_of(bmp_header(0x10000, 0x10001)).find("limit"), std::string::npos);
  EXPECT_LT(peak_kilobytes() - before, 64 * 1024);
}

TEST(decode_errors, small_files_with_large_headers_are_refused_before_allocation) {
  const long before = peak_kilobytes();
  EXPECT_NE(error_of(png_header(13000, 13000)).find("cannot hold"), std::string::npos);
  EXPECT_NE(error_of(jpeg_of_size(13000, 13000)).find("cannot hold"), std::string::npos);
  EXPECT_NE(error_of(bmp_header(13000, 13000)).find("truncated"), std::string::npos);
  EXPECT_LT(peak_kilobytes() - before, 64 * 1024);
}

TEST(decode_errors, callers_may_set_a_lower_limit) {
  DecodeLimits limits;
  limits.max_pixels = 29 * 21;
  for (const std::string name : {"rgb16.png", "rgb420.jpg", "rgb24.bmp", "plain.gif", "odd_size.webp"}) {
    EXPECT_EQ(error_of(picture(name), limits), "no error") << name;
  }
  limits.max_pixels -= 1;
  for (const std::string name : {"rgb16.png", "rgb420.jpg", "rgb24.bmp", "plain.gif", "odd_size.webp"}) {
    EXPECT_NE(error_of(picture(name), limits).find("29x21 is more than the limit of 608 pixels"),
              std::string::npos)
        << name;
  }
  limits.max_side = 28;
  EXPECT_NE(error_of(picture("rgb16.png"), limits).find("longer"), std::string::npos);
}

TEST(decode_errors, empty_pictures_are_refused) {
  EXPECT_NE(error_of(bmp_header(0, 10)).find("0x10"), std::string::npos);
  EXPECT_NE(error_of(jpeg_of_size(0, 10)), "no error");
  EXPECT_NE(error_of(png_header(0, 10)), "no error");
}

TEST(decode_errors, formats_are_told_from_bytes_and_named) {
  const auto named = [](const std::string& file, const std::string& name) {
    const std::string message = error_of(file);
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("expected PNG, JPEG, WebP, BMP or GIF"), std::string::npos) << message;
  };
  named("", "empty file");
  named("\0\0\0\x18"s + "ftypheic\0\0\0\0"s, "HEIC");
  named("\0\0\0\x18"s + "ftypmif1\0\0\0\0"s, "HEIC");
  named("\0\0\0\x18"s + "ftypavif\0\0\0\0"s, "AVIF");
  named("\0\0\0\x18"s + "ftypisom\0\0\0\0"s, "video");
  named("II*\0\x08\0\0\0"s, "TIFF");
  named("MM\0*\0\0\0\x08"s, "TIFF");
  named("<?xml version=\"1.0\"?>\n<svg xmlns='x'/>", "SVG");
  named("<!DOCTYPE html><html>", "HTML");
  named("%PDF-1.7", "PDF");
  named("\xff\x0a rest", "JPEG XL");
  named("hello", "unknown format (first bytes 68 65 6c 6c 6f)");
  named("RIFF\x04\0\0\0WAVE"s, "unknown format");
  named("\x89PNG", "unknown format");
}

TEST(decode_errors, truncated_files_are_refused_as_pil_refuses_them) {
  for (const std::string name :
       {"rgb8_interlaced.png", "rgba16.png", "rgb420.jpg", "rgb444_progressive.jpg", "cmyk.jpg", "lossy.webp",
        "lossless_alpha.webp", "animated.webp", "rgb24.bmp", "rle8.bmp", "plain.gif", "interlaced.gif"}) {
    const std::string file = picture(name);
    const std::string message = error_of(file.substr(0, file.size() * 7 / 10));
    EXPECT_NE(message.find("truncated"), std::string::npos) << name << ": " << message;
  }
  // PIL waits for the end marker of a JPEG, and does without the end chunk of a PNG (no_iend.png decodes).
  const std::string jpeg = picture("rgb420.jpg");
  EXPECT_NE(error_of(jpeg.substr(0, jpeg.size() - 2)).find("truncated"), std::string::npos);
}

TEST(decode_errors, jpegs_with_endless_scans_are_refused) {
  const std::string file = picture("rgb444_progressive.jpg");
  const std::size_t first = file.find("\xff\xda");
  const std::string scan = file.substr(first, file.find("\xff\xda", first + 2) - first);
  const auto with_more = [&](int copies) {
    std::string longer = file;
    for (int i = 0; i < copies; ++i) longer.insert(first, scan);
    return longer;
  };
  EXPECT_EQ(error_of(with_more(20)), "no error");
  EXPECT_NE(error_of(with_more(600)).find("more than 500 scans"), std::string::npos);
}

TEST(decode_errors, no_prefix_and_no_flipped_byte_does_more_than_throw) {
  const auto index = test::read_json(golden("pictures/pictures.json"));
  DecodeLimits limits;
  limits.max_pixels = 1 << 20;  // a damaged size may be a valid one
  std::size_t decoded = 0;
  std::size_t refused = 0;
  const auto run = [&](const std::string& file) {
    try {
      const Image image = decode_image(bytes_of(file), limits);
      EXPECT_EQ(image.rgb.size(), std::size_t{image.width} * image.height * 3);
      ++decoded;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_file) << error.what();
      ++refused;
    }
  };
  for (const auto& entry : index) {
    SCOPED_TRACE(entry["file"].dump());
    const std::string file = picture(entry["file"]);
    for (std::size_t part = 0; part < 24; ++part) run(file.substr(0, file.size() * part / 24));
    for (std::size_t part = 0; part < 48; ++part) {
      std::string damaged = file;
      damaged[(file.size() - 1) * part / 47] ^= static_cast<char>(1 << part % 8);
      run(damaged);
    }
  }
  EXPECT_GT(decoded, 1000u);
  EXPECT_GT(refused, 3000u);
}

}  // namespace
}  // namespace heirloom
