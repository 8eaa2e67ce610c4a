// JPEG through libjpeg-turbo, with the settings PIL uses (its defaults: accurate integer IDCT, fancy
// upsampling). Four-channel files are taken as inverted, the Adobe convention, whatever their markers say, as
// PIL does.

// jpeglib.h needs FILE and size_t declared before it, jerror.h needs jpeglib.h.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "image/decode_formats.h"
#include "image/exif.h"

namespace heirloom {
namespace {

// A progressive file may repeat scans without end, each costing a pass over the picture (libjpeg-turbo's own
// tools have the same guard, -maxscans). Real encoders write about ten.
constexpr int kMaxScans = 500;

struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg hands back this address
  std::jmp_buf jump;
  bool truncated = false;
  bool too_many_scans = false;
  bool out_of_memory = false;
  bool too_big = false;
  char message[JMSG_LENGTH_MAX] = "";
};

void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  errors->out_of_memory = info->err->msg_code == JERR_OUT_OF_MEMORY;
  errors->too_big = info->err->msg_code == JERR_IMAGE_TOO_BIG;
  info->err->format_message(info, errors->message);
  std::longjmp(errors->jump, 1);
}

void on_message(j_common_ptr) {}  // warnings are PIL's business neither

void no_op(j_decompress_ptr) {}

/// libjpeg would invent an end marker here and grey out the rest of the picture; PIL raises.
boolean on_end_of_data(j_decompress_ptr info) {
  reinterpret_cast<JpegErrors*>(info->err)->truncated = true;
  ERREXIT(info, JERR_INPUT_EOF);
  return FALSE;
}

void on_skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<std::size_t>(count) > info->src->bytes_in_buffer) on_end_of_data(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

void on_progress(j_common_ptr info) {
  if (!info->is_decompressor || reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans)
    return;
  reinterpret_cast<JpegErrors*>(info->err)->too_many_scans = true;
  ERREXIT(info, JERR_BAD_PROGRESSION);
}

/// A decompressor whose steps may longjmp back into themselves; no object with a destructor lives in those
/// frames.
class JpegReader {
 public:
  explicit JpegReader(std::span<const std::byte> file) {
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_error;
    errors_.manager.output_message = on_message;
    if (!create()) fail_here();
    source_.init_source = no_op;
    source_.fill_input_buffer = on_end_of_data;
    source_.skip_input_data = on_skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = no_op;
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
    source_.bytes_in_buffer = file.size();
    info_.src = &source_;
    progress_.progress_monitor = on_progress;
    info_.progress = &progress_;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  const jpeg_decompress_struct& info() const { return info_; }

  [[noreturn]] void fail_here() const {
    if (errors_.out_of_memory) throw std::bad_alloc();
    if (errors_.truncated)
      fail(ErrorKind::bad_file, "JPEG picture: truncated, the file ends before the picture does");
    if (errors_.too_many_scans) {
      fail(ErrorKind::bad_file, "JPEG picture: more than {} scans; save it as a baseline JPEG", kMaxScans);
    }
    fail(ErrorKind::bad_file, "JPEG picture: {}", errors_.message);
  }
  bool too_big() const { return errors_.too_big; }

  bool read_header() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&info_, TRUE);
    return true;
  }
  bool start() {
    if (setjmp(errors_.jump) != 0) return false;
    info_.out_color_space = info_.num_components == 1   ? JCS_GRAYSCALE
                            : info_.num_components == 3 ? JCS_RGB
                                                        : JCS_CMYK;
    jpeg_start_decompress(&info_);
    return true;
  }
  bool read_row(JSAMPLE* row) {
    if (setjmp(errors_.jump) != 0) return false;
    JSAMPROW rows[1] = {row};
    return jpeg_read_scanlines(&info_, rows, 1) == 1;
  }
  bool finish() {
    if (setjmp(errors_.jump) != 0) return false;
    return jpeg_finish_decompress(&info_) != FALSE;
  }

 private:
  bool create() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    return true;
  }

  JpegErrors errors_;
  jpeg_decompress_struct info_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
};

/// PIL's CMYK to RGB: multiply in 8 bits with rounding, then clip.
std::uint8_t ink(std::uint8_t colour, std::uint8_t black) {
  const int paper = 255 - black;
  const int product = colour * paper + 128;
  const int darkening = ((product >> 8) + product) >> 8;
  return static_cast<std::uint8_t>(paper - darkening);
}

void convert_row(const JSAMPLE* from, std::uint8_t* to, std::size_t width, int components) {
  switch (components) {
    case 1:
      for (std::size_t x = 0; x < width; ++x) std::memset(to + 3 * x, from[x], 3);
      return;
    case 3:
      std::memcpy(to, from, width * 3);
      return;
    default:
      for (std::size_t x = 0; x < width; ++x) {
        const auto black = static_cast<std::uint8_t>(255 - from[4 * x + 3]);
        for (std::size_t c = 0; c < 3; ++c)
          to[3 * x + c] = ink(static_cast<std::uint8_t>(255 - from[4 * x + c]), black);
      }
  }
}

int orientation(const jpeg_decompress_struct& info) {
  constexpr std::string_view kExif{"Exif\0\0", 6};
  constexpr std::string_view kXmp{"http://ns.adobe.com/xap/1.0/\0", 29};
  std::vector<std::byte> exif;  // PIL joins several blocks
  bool has_exif = false;
  std::string_view xmp;
  for (const jpeg_marker_struct* marker = info.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (marker->marker != JPEG_APP0 + 1) continue;
    if (data.starts_with(kExif)) {
      const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
      exif.insert(exif.end(), bytes + kExif.size(), bytes + data.size());
      has_exif = true;
    } else if (data.starts_with(kXmp)) {
      xmp = data.substr(kXmp.size());
    }
  }
  std::optional<int> found;
  if (has_exif) found = exif_orientation(exif);
  if (!found) found = xmp_orientation(xmp);
  return found.value_or(1);
}

}  // namespace

DecodedFile decode_jpeg(std::span<const std::byte> file, const DecodeLimits& limits) {
  JpegReader reader(file);
  if (!reader.read_header()) {
    if (reader.too_big()) {
      const auto& info = reader.info();
      check_picture_size("JPEG", info.image_width, info.image_height, limits);
    }
    reader.fail_here();
  }
  const jpeg_decompress_struct& info = reader.info();
  check_picture_size("JPEG", info.image_width, info.image_height, limits);
  const int components = info.num_components;
  if (components != 1 && components != 3 && components != 4) {
    fail(ErrorKind::bad_file, "JPEG picture: {} colour channels, expected 1 (grey), 3 (colour) or 4 (CMYK)",
         components);
  }
  // Huffman codes are a bit or longer and every 8x8 block has a DC code: 512 pixels a byte. (Arithmetic
  // coding has no such bound.)
  if (info.arith_code == FALSE)
    check_compression_ratio("JPEG", std::uint64_t{info.image_width} * info.image_height, 512, file.size());
  if (!reader.start()) reader.fail_here();
  DecodedFile decoded{make_image(info.output_width, info.output_height)};
  const std::size_t width = info.output_width;
  std::vector<JSAMPLE> row(width * static_cast<std::size_t>(components));
  for (std::size_t y = 0; y < info.output_height; ++y) {
    if (!reader.read_row(row.data())) reader.fail_here();
    convert_row(row.data(), &decoded.image.rgb[y * width * 3], width, components);
  }
  decoded.orientation = orientation(info);  // finishing frees the markers
  if (!reader.finish()) reader.fail_here();
  return decoded;
}

}  // namespace heirloom
