// PNG through libpng. libpng only unfilters and de-interlaces; the conversions to RGB are ours because they
// follow PIL, which ignores gAMA, takes the high byte of 16-bit colour, and clips (not scales) 16-bit grey at
// 255.
#include <png.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "image/decode_formats.h"
#include "image/exif.h"

namespace heirloom {
namespace {

/// Where libpng is in the file, and why it stopped. libpng reports errors by longjmp, so this outlives every
/// frame it may cut.
struct PngSource {
  std::span<const std::byte> rest;
  bool truncated = false;
  char message[128] = "damaged data";
};

void on_error(png_structp png, png_const_charp message) {
  auto* source = static_cast<PngSource*>(png_get_error_ptr(png));
  std::snprintf(source->message, sizeof source->message, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep to, std::size_t size) {
  auto* source = static_cast<PngSource*>(png_get_io_ptr(png));
  if (size > source->rest.size()) {
    source->truncated = true;
    png_error(png, "the file ends early");
  }
  std::memcpy(to, source->rest.data(), size);
  source->rest = source->rest.subspan(size);
}

/// The libpng objects and the buffers that a longjmp must not leak.
struct PngReader {
  PngSource source;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::vector<std::uint8_t> samples;  // one row, or the whole picture when interlaced
  std::vector<png_bytep> rows;
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  int bit_depth = 0;
  int colour_type = 0;
  int passes = 1;

  explicit PngReader(std::span<const std::byte> file) : source{file} {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, on_error, on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(png, &source, on_read);
    png_set_user_limits(png, 0x7fffffff, 0x7fffffff);  // DecodeLimits decides
    // Colour profiles are not applied; skipping them spares their decompression.
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, reinterpret_cast<png_const_bytep>("iCCP"), 1);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  [[noreturn]] void fail_here() const {
    fail(ErrorKind::bad_file, "PNG picture: {}",
         source.truncated ? "truncated, the file ends before the picture does" : source.message);
  }
  // The calls that may longjmp, one per step, so that no object with a destructor lives in their frames.
  bool read_info() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_info(png, info);
    png_get_IHDR(png, info, &width, &height, &bit_depth, &colour_type, nullptr, nullptr, nullptr);
    return true;
  }
  /// libpng allocates its rows here, so the size must have been checked.
  bool start() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_packing(png);  // one byte a sample for 1, 2 and 4 bits
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }
  bool read_row(std::uint8_t* row) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_row(png, row, nullptr);
    return true;
  }
  bool read_all_rows() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_image(png, rows.data());
    return true;
  }
  /// Chunks after the pixels may hold EXIF; damage there does not matter, as for PIL.
  void read_end() {
    if (setjmp(png_jmpbuf(png)) != 0) return;
    png_read_end(png, info);
  }
};

/// Converts rows of samples as libpng hands them over (packed samples widened to a byte, 16-bit big-endian)
/// to RGB.
class RowConverter {
 public:
  explicit RowConverter(const PngReader& reader)
      : width_(reader.width), bit_depth_(reader.bit_depth), colour_type_(reader.colour_type) {
    if (colour_type_ != PNG_COLOR_TYPE_PALETTE) return;
    png_colorp colours = nullptr;
    int count = 0;
    png_get_PLTE(reader.png, reader.info, &colours, &count);
    for (int i = 0; i < count; ++i) {  // indices past the palette are black, as in PIL
      palette_[static_cast<std::size_t>(i)] = {colours[i].red, colours[i].green, colours[i].blue};
    }
  }

  std::array<std::uint8_t, 3> palette_colour(std::size_t index) const { return palette_[index]; }

  void convert(const std::uint8_t* from, std::uint8_t* to) const {
    switch (colour_type_) {
      case PNG_COLOR_TYPE_PALETTE:
        for (std::size_t x = 0; x < width_; ++x) std::memcpy(to + 3 * x, palette_[from[x]].data(), 3);
        return;
      case PNG_COLOR_TYPE_GRAY:
        for (std::size_t x = 0; x < width_; ++x) std::memset(to + 3 * x, grey(from, x), 3);
        return;
      case PNG_COLOR_TYPE_GRAY_ALPHA:
        return pick(from, to, 2, false);
      case PNG_COLOR_TYPE_RGB:
        return pick(from, to, 3, true);
      default:
        return pick(from, to, 4, true);  // RGBA
    }
  }

 private:
  std::uint8_t grey(const std::uint8_t* from, std::size_t x) const {
    // PIL's "I;16" to "RGB" clips: everything above 255 is white.
    if (bit_depth_ == 16) return from[2 * x] != 0 ? std::uint8_t{255} : from[2 * x + 1];
    return static_cast<std::uint8_t>(from[x] * (255 / ((1 << bit_depth_) - 1)));
  }
  void pick(const std::uint8_t* from, std::uint8_t* to, std::size_t channels, bool colour) const {
    const std::size_t sample_bytes = bit_depth_ == 16 ? 2 : 1;  // the high byte comes first
    for (std::size_t x = 0; x < width_; ++x) {
      const std::uint8_t* pixel = from + x * channels * sample_bytes;
      for (std::size_t c = 0; c < 3; ++c) to[3 * x + c] = pixel[colour ? c * sample_bytes : 0];
    }
  }

  std::size_t width_;
  int bit_depth_;
  int colour_type_;
  std::array<std::array<std::uint8_t, 3>, 256> palette_{};
};

/// The colour that the reference processors paint white, from tRNS, with PIL's arithmetic (which forgets the
/// bit depth in places: see the cases).
std::optional<std::array<std::uint8_t, 3>> transparent_colour(const PngReader& reader,
                                                              const RowConverter& converter) {
  png_bytep alphas = nullptr;
  int count = 0;
  png_color_16p value = nullptr;
  if (png_get_tRNS(reader.png, reader.info, &alphas, &count, &value) == 0) return std::nullopt;
  if (reader.colour_type == PNG_COLOR_TYPE_PALETTE) {
    // One fully transparent entry among opaque ones is a colour; a table of alphas is dropped by
    // convert("RGB").
    const std::span<const png_byte> table(alphas, static_cast<std::size_t>(count));
    const auto clear = std::find(table.begin(), table.end(), 0);
    if (clear == table.end() || std::count(table.begin(), table.end(), 255) != count - 1) return std::nullopt;
    return converter.palette_colour(static_cast<std::size_t>(clear - table.begin()));
  }
  if (reader.colour_type == PNG_COLOR_TYPE_RGB) {  // the low byte, also of 16-bit values
    return std::array{static_cast<std::uint8_t>(value->red & 0xff),
                      static_cast<std::uint8_t>(value->green & 0xff),
                      static_cast<std::uint8_t>(value->blue & 0xff)};
  }
  const std::uint16_t grey = value->gray;
  if (reader.bit_depth == 1)
    return std::array<std::uint8_t, 3>{grey != 0 ? std::uint8_t{255} : std::uint8_t{0}, 0, 0};
  if (reader.bit_depth == 16)
    return std::array<std::uint8_t, 3>{static_cast<std::uint8_t>(grey & 0xff), 0, 0};
  const auto clipped = static_cast<std::uint8_t>(std::min<int>(grey, 255));  // not scaled with the pixels
  return std::array{clipped, clipped, clipped};
}

/// ImageMagick's "Raw profile type exif" text: three lines of header, then hexadecimal.
std::vector<std::byte> raw_exif_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::vector<std::byte> bytes;
  int high = -1;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) continue;
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<std::byte>(high * 16 + digit));
      high = -1;
    }
  }
  return bytes;
}

int orientation(const PngReader& reader) {
  png_bytep block = nullptr;
  png_uint_32 size = 0;
  std::optional<int> found;
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(reader.png, reader.info, &texts, &count);
  const auto text_of = [&](std::string_view key) -> std::string_view {
    for (int i = 0; i < count; ++i) {
      if (texts[i].text != nullptr && key == texts[i].key) {
        return {texts[i].text, std::max(texts[i].text_length, texts[i].itxt_length)};
      }
    }
    return {};
  };
  if (png_get_eXIf_1(reader.png, reader.info, &size, &block) != 0) {
    found = exif_orientation({reinterpret_cast<const std::byte*>(block), size});
  } else if (const std::string_view profile = text_of("Raw profile type exif"); !profile.empty()) {
    found = exif_orientation(raw_exif_profile(profile));
  }
  if (!found) found = xmp_orientation(text_of("XML:com.adobe.xmp"));
  return found.value_or(1);
}

}  // namespace

DecodedFile decode_png(std::span<const std::byte> file, const DecodeLimits& limits) {
  PngReader reader(file);
  if (!reader.read_info()) reader.fail_here();
  check_picture_size("PNG", reader.width, reader.height, limits);
  // Deflate reaches 1032:1 at most (258 bytes for two bits). Rows are widened to whole bytes a sample here,
  // the file's are packed.
  const std::uint64_t packed_bytes = std::uint64_t{reader.width} * png_get_channels(reader.png, reader.info) *
                                     static_cast<std::uint64_t>(reader.bit_depth) / 8 * reader.height;
  check_compression_ratio("PNG", packed_bytes, 1032, file.size());
  if (!reader.start()) reader.fail_here();
  DecodedFile decoded{make_image(reader.width, reader.height)};
  const RowConverter converter(reader);
  const std::size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
  const std::size_t out_bytes = std::size_t{reader.width} * 3;
  if (reader.passes == 1) {
    reader.samples.resize(row_bytes);
    for (std::size_t y = 0; y < reader.height; ++y) {
      if (!reader.read_row(reader.samples.data())) reader.fail_here();
      converter.convert(reader.samples.data(), &decoded.image.rgb[y * out_bytes]);
    }
  } else {
    reader.samples.resize(row_bytes * reader.height);
    reader.rows.resize(reader.height);
    for (std::size_t y = 0; y < reader.height; ++y) reader.rows[y] = &reader.samples[y * row_bytes];
    if (!reader.read_all_rows()) reader.fail_here();
    for (std::size_t y = 0; y < reader.height; ++y)
      converter.convert(reader.rows[y], &decoded.image.rgb[y * out_bytes]);
  }
  reader.read_end();
  decoded.image.transparent_colour = transparent_colour(reader, converter);
  decoded.orientation = orientation(reader);
  return decoded;
}

}  // namespace heirloom
