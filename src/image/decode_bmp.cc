// BMP, read here: the format is a header, a palette and rows, and the common small libraries lack its
// run-length forms or widen 16-bit colour otherwise than PIL does. Layout: "Bitmap Header Types" and
// BITMAPV5HEADER in Microsoft's GDI documentation.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "image/decode_formats.h"

namespace heirloom {
namespace {

constexpr std::uint32_t kRaw = 0;
constexpr std::uint32_t kRle8 = 1;
constexpr std::uint32_t kRle4 = 2;
constexpr std::uint32_t kBitfields = 3;

/// Little-endian numbers of the file; a read past its end throws.
class BmpBytes {
 public:
  explicit BmpBytes(std::span<const std::byte> file) : file_(file) {}

  const std::uint8_t* range(std::uint64_t offset, std::uint64_t size) const {
    if (offset > file_.size() || size > file_.size() - offset) {
      fail(ErrorKind::bad_file, "BMP picture: truncated, {} bytes expected at offset {}, the file has {}",
           size, offset, file_.size());
    }
    return reinterpret_cast<const std::uint8_t*>(file_.data()) + offset;
  }
  std::uint32_t u8(std::uint64_t offset) const { return *range(offset, 1); }
  std::uint32_t u16(std::uint64_t offset) const { return u8(offset) | u8(offset + 1) << 8; }
  std::uint32_t u32(std::uint64_t offset) const { return u16(offset) | u16(offset + 2) << 16; }
  bool has(std::uint64_t offset, std::uint64_t size) const {
    return offset <= file_.size() && size <= file_.size() - offset;
  }

 private:
  std::span<const std::byte> file_;
};

struct BmpHeader {
  std::uint64_t width = 0;
  std::uint64_t height = 0;
  bool top_down = false;
  std::uint32_t bits = 0;
  std::uint32_t compression = kRaw;
  std::uint64_t colours = 0;      // palette entries
  std::uint64_t entry_bytes = 4;  // of a palette entry
  std::uint64_t palette_offset = 0;
  std::uint64_t pixel_offset = 0;
  std::array<std::uint32_t, 3> masks{};  // red, green, blue
};

BmpHeader read_header(const BmpBytes& bytes) {
  BmpHeader header;
  const std::uint64_t size = bytes.u32(14);
  if (size == 12) {  // OS/2 1.x
    header.width = bytes.u16(18);
    header.height = bytes.u16(20);
    header.bits = bytes.u16(24);
    header.entry_bytes = 3;
  } else if (size == 40 || size == 52 || size == 56 || size == 64 || size == 108 || size == 124) {
    header.width = bytes.u32(18);
    header.height = bytes.u32(22);
    header.top_down = (header.height & 0x80000000u) != 0;
    if (header.top_down) header.height = (std::uint64_t{1} << 32) - header.height;
    header.bits = bytes.u16(28);
    header.compression = bytes.u32(30);
    header.colours = bytes.u32(46);
  } else {
    fail(ErrorKind::bad_file, "BMP picture: header of {} bytes, expected 12, 40, 52, 56, 64, 108 or 124",
         size);
  }
  header.palette_offset = 14 + size;
  if (header.compression == kBitfields) {
    if (size == 64) fail(ErrorKind::bad_file, "BMP picture: OS/2 Huffman compression is not supported");
    for (std::size_t i = 0; i < 3; ++i)
      header.masks[i] = bytes.u32(54 + 4 * i);  // inside V2+ headers, right after the first
    if (size == 40) header.palette_offset += 12;
  } else if (header.bits == 16) {
    header.masks = {0x7c00, 0x03e0, 0x001f};
  }
  if (header.bits == 32 && header.masks == std::array<std::uint32_t, 3>{})
    header.masks = {0xff0000, 0xff00, 0xff};
  if (header.colours == 0) header.colours = std::uint64_t{1} << std::min(header.bits, 8u);
  header.pixel_offset = bytes.u32(10);
  const std::uint64_t palette_bytes = header.bits <= 8 ? header.colours * header.entry_bytes : 0;
  // Some writers leave the offset at the palette, or at zero.
  if (header.pixel_offset == 0 || (header.bits <= 8 && header.pixel_offset == 14 + size)) {
    header.pixel_offset = header.palette_offset + palette_bytes;
  }
  return header;
}

void check_layout(const BmpHeader& header) {
  const std::uint32_t bits = header.bits;
  if (bits != 1 && bits != 4 && bits != 8 && bits != 16 && bits != 24 && bits != 32) {
    fail(ErrorKind::bad_file, "BMP picture: {} bits a pixel, expected 1, 4, 8, 16, 24 or 32", bits);
  }
  const bool fits = header.compression == kRaw || (header.compression == kRle8 && bits == 8) ||
                    (header.compression == kRle4 && bits == 4) ||
                    (header.compression == kBitfields && bits >= 16);
  if (!fits) {
    fail(ErrorKind::bad_file, "BMP picture: compression {} with {} bits a pixel is not supported",
         header.compression, bits);
  }
  if (bits <= 8 && header.colours > 65536) {
    fail(ErrorKind::bad_file, "BMP picture: palette of {} colours, at most 65536 expected", header.colours);
  }
  using Masks = std::array<std::uint32_t, 3>;
  bool known = true;
  if (bits == 16)
    known = header.masks == Masks{0xf800, 0x07e0, 0x001f} || header.masks == Masks{0x7c00, 0x03e0, 0x001f};
  if (bits == 24 && header.compression == kBitfields) known = header.masks == Masks{0xff0000, 0xff00, 0xff};
  if (bits == 32) {  // one byte each
    for (const std::uint32_t mask : header.masks) {
      known = known && (mask == 0xffu || mask == 0xff00u || mask == 0xff0000u || mask == 0xff000000u);
    }
  }
  if (!known) {
    fail(ErrorKind::bad_file,
         "BMP picture: colour masks {:#x} {:#x} {:#x} with {} bits a pixel are not supported",
         header.masks[0], header.masks[1], header.masks[2], bits);
  }
}

using Palette = std::array<std::array<std::uint8_t, 3>, 256>;

/// Blue, green, red (, unused). Indices past the table are black.
Palette read_palette(const BmpBytes& bytes, const BmpHeader& header) {
  Palette palette{};
  const std::uint64_t count = std::min<std::uint64_t>(header.colours, 256);
  const std::uint8_t* entries = bytes.range(header.palette_offset, count * header.entry_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* entry = entries + i * header.entry_bytes;
    palette[i] = {entry[2], entry[1], entry[0]};
  }
  return palette;
}

/// Run-length data to one index a pixel, in stored row order. Positions run on linearly, as in PIL's decoder.
std::vector<std::uint8_t> expand_runs(const BmpBytes& bytes, const BmpHeader& header) {
  const bool nibbles = header.compression == kRle4;
  const std::uint64_t total = header.width * header.height;
  std::vector<std::uint8_t> indices(total);  // what deltas and an early end skip stays colour 0
  std::uint64_t at = header.pixel_offset;
  std::uint64_t position = 0;
  std::uint64_t x = 0;
  while (position < total) {
    const std::uint32_t count = bytes.u8(at);
    const std::uint32_t value = bytes.u8(at + 1);
    at += 2;
    if (count != 0) {
      const std::uint64_t room = x < header.width ? header.width - x : 0;
      const std::uint64_t run = std::min({std::uint64_t{count}, room, total - position});
      for (std::uint64_t i = 0; i < run; ++i) {
        indices[position + i] = static_cast<std::uint8_t>(!nibbles     ? value
                                                          : i % 2 == 0 ? value >> 4
                                                                       : value & 15);
      }
      position += run;
      x += run;
    } else if (value == 0) {  // end of line
      position = (position + header.width - 1) / header.width * header.width;
      x = 0;
    } else if (value == 1) {  // end of bitmap
      break;
    } else if (value == 2) {  // delta
      position = std::min(total, position + bytes.u8(at) + bytes.u8(at + 1) * header.width);
      x = position % header.width;
      at += 2;
    } else {  // literal indices, padded to an even file position
      const std::uint64_t run = std::min<std::uint64_t>(value, total - position);
      const std::uint64_t stored = nibbles ? (run + 1) / 2 : run;
      const std::uint8_t* from = bytes.range(at, stored);
      for (std::uint64_t i = 0; i < run; ++i) {
        indices[position + i] = static_cast<std::uint8_t>(!nibbles     ? from[i]
                                                          : i % 2 == 0 ? from[i / 2] >> 4
                                                                       : from[i / 2] & 15);
      }
      position += run;
      x += value;
      at += stored;
      at += at % 2;
    }
  }
  return indices;
}

void convert_row(const std::uint8_t* from, std::uint8_t* to, const BmpHeader& header,
                 const Palette& palette) {
  const std::size_t width = header.width;
  const std::uint32_t bits = header.bits;
  for (std::size_t x = 0; x < width; ++x) {
    std::uint8_t* pixel = to + 3 * x;
    if (bits <= 8) {
      const std::size_t bit = x * bits;
      const std::uint32_t index = from[bit / 8] >> (8 - bits - bit % 8) & ((1u << bits) - 1);
      std::memcpy(pixel, palette[index].data(), 3);
    } else if (bits == 24) {
      for (std::size_t c = 0; c < 3; ++c) pixel[c] = from[3 * x + 2 - c];
    } else {
      std::uint32_t value = 0;
      for (std::uint32_t i = bits / 8; i-- > 0;) value = value << 8 | from[x * (bits / 8) + i];
      for (std::size_t c = 0; c < 3; ++c) {
        const int shift = std::countr_zero(header.masks[c]);
        const std::uint32_t top = header.masks[c] >> shift;  // 31, 63 or 255
        pixel[c] = static_cast<std::uint8_t>((value >> shift & top) * 255 / top);
      }
    }
  }
}

}  // namespace

DecodedFile decode_bmp(std::span<const std::byte> file, const DecodeLimits& limits) {
  const BmpBytes bytes(file);
  const BmpHeader header = read_header(bytes);
  check_picture_size("BMP", header.width, header.height, limits);
  check_layout(header);
  const Palette palette = header.bits <= 8 ? read_palette(bytes, header) : Palette{};
  const bool runs = header.compression == kRle8 || header.compression == kRle4;
  const std::uint64_t stride = (header.width * header.bits + 31) / 32 * 4;
  const std::uint64_t row_bytes = (header.width * header.bits + 7) / 8;  // the last row may lack its padding
  const std::uint8_t* rows = nullptr;
  std::vector<std::uint8_t> indices;
  if (runs) {
    if (!bytes.has(header.pixel_offset, 2))
      fail(ErrorKind::bad_file, "BMP picture: truncated, no pixel data");
    indices = expand_runs(bytes, header);
  } else {
    rows = bytes.range(header.pixel_offset, stride * (header.height - 1) + row_bytes);
  }
  DecodedFile decoded{make_image(header.width, header.height)};
  for (std::uint64_t y = 0; y < header.height; ++y) {
    const std::uint64_t stored = header.top_down ? y : header.height - 1 - y;
    std::uint8_t* to = &decoded.image.rgb[y * header.width * 3];
    if (runs) {
      const std::uint8_t* from = &indices[stored * header.width];
      for (std::uint64_t x = 0; x < header.width; ++x) std::memcpy(to + 3 * x, palette[from[x]].data(), 3);
    } else {
      convert_row(rows + stored * stride, to, header, palette);
    }
  }
  return decoded;
}

}  // namespace heirloom
