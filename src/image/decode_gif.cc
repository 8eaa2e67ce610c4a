// The first frame of a GIF through giflib, placed on the logical screen as PIL places it.
#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "image/decode_formats.h"

namespace heirloom {
namespace {

int on_read(GifFileType* gif, GifByteType* to, int size) {
  auto* rest = static_cast<std::span<const std::byte>*>(gif->UserData);
  const std::size_t count = std::min(static_cast<std::size_t>(std::max(size, 0)), rest->size());
  if (count != 0) std::memcpy(to, rest->data(), count);
  *rest = rest->subspan(count);
  return static_cast<int>(count);
}

struct CloseGif {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};

[[noreturn]] void fail_gif(int code) {
  const bool ends_early = code == D_GIF_ERR_READ_FAILED || code == D_GIF_ERR_EOF_TOO_SOON;
  const char* reason = GifErrorString(code);
  fail(ErrorKind::bad_file, "GIF picture: {}",
       ends_early          ? "truncated, the file ends before the picture does"
       : reason != nullptr ? reason
                           : "damaged data");
}

/// Reads one extension; a graphic control extension tells the transparent index (5.2.3 of the GIF89a
/// specification).
void read_extension(GifFileType* gif, int& transparent_index) {
  int code = 0;
  GifByteType* block = nullptr;
  if (DGifGetExtension(gif, &code, &block) == GIF_ERROR) fail_gif(gif->Error);
  if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr && block[0] >= 4 && (block[1] & 1) != 0)
    transparent_index = block[4];
  while (block != nullptr) {
    if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) fail_gif(gif->Error);
  }
}

/// The colours of the frame as PIL reads them: no table, or one that is a grey ramp, means index = grey
/// level; indices past a real table are black.
std::array<std::array<std::uint8_t, 3>, 256> frame_palette(const GifFileType& gif) {
  std::array<std::array<std::uint8_t, 3>, 256> palette{};
  const ColorMapObject* map = gif.Image.ColorMap != nullptr ? gif.Image.ColorMap : gif.SColorMap;
  bool is_ramp = true;
  const int count = map == nullptr ? 0 : std::min(map->ColorCount, 256);
  for (int i = 0; i < count; ++i) {
    const GifColorType& colour = map->Colors[i];
    palette[static_cast<std::size_t>(i)] = {colour.Red, colour.Green, colour.Blue};
    is_ramp = is_ramp && colour.Red == i && colour.Green == i && colour.Blue == i;
  }
  if (is_ramp) {
    for (std::size_t i = 0; i < 256; ++i) palette[i].fill(static_cast<std::uint8_t>(i));
  }
  return palette;
}

/// Row of the frame that the n-th stored line of an interlaced picture belongs to (four passes).
std::vector<std::uint32_t> line_order(std::uint32_t height, bool interlaced) {
  std::vector<std::uint32_t> order;
  order.reserve(height);
  if (!interlaced) {
    for (std::uint32_t y = 0; y < height; ++y) order.push_back(y);
    return order;
  }
  constexpr std::uint32_t kPasses[4][2] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  for (const auto& [start, step] : kPasses) {
    for (std::uint32_t y = start; y < height; y += step) order.push_back(y);
  }
  return order;
}

}  // namespace

DecodedFile decode_gif(std::span<const std::byte> file, const DecodeLimits& limits) {
  std::span<const std::byte> rest = file;
  int error = 0;
  const std::unique_ptr<GifFileType, CloseGif> gif(DGifOpen(&rest, on_read, &error));
  if (gif == nullptr) fail_gif(error);
  int transparent_index = -1;
  for (;;) {
    GifRecordType record = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(gif.get(), &record) == GIF_ERROR) fail_gif(gif->Error);
    if (record == IMAGE_DESC_RECORD_TYPE) break;
    if (record == TERMINATE_RECORD_TYPE) fail(ErrorKind::bad_file, "GIF picture: no frame in the file");
    if (record == EXTENSION_RECORD_TYPE) read_extension(gif.get(), transparent_index);
  }
  if (DGifGetImageDesc(gif.get()) == GIF_ERROR) fail_gif(gif->Error);
  // The screen grows to hold the frame where a file's header is too small for it.
  const auto left = static_cast<std::uint32_t>(gif->Image.Left);
  const auto top = static_cast<std::uint32_t>(gif->Image.Top);
  const auto frame_width = static_cast<std::uint32_t>(gif->Image.Width);
  const auto frame_height = static_cast<std::uint32_t>(gif->Image.Height);
  const std::uint32_t width = std::max(static_cast<std::uint32_t>(gif->SWidth), left + frame_width);
  const std::uint32_t height = std::max(static_cast<std::uint32_t>(gif->SHeight), top + frame_height);
  check_picture_size("GIF", width, height, limits);
  check_picture_size("GIF", frame_width, frame_height, limits);

  // An LZW code of 12 bits stands for at most 4096 pixels.
  check_compression_ratio("GIF", std::uint64_t{frame_width} * frame_height, 2731, file.size());
  const auto palette = frame_palette(*gif);
  DecodedFile decoded{make_image(width, height)};
  Image& image = decoded.image;
  const auto& around = palette[transparent_index >= 0 ? static_cast<std::size_t>(transparent_index) : 0];
  if (frame_width != width || frame_height != height) {
    for (std::size_t i = 0; i < std::size_t{width} * height; ++i)
      std::memcpy(&image.rgb[3 * i], around.data(), 3);
  }
  std::vector<GifPixelType> line(frame_width);
  for (const std::uint32_t y : line_order(frame_height, gif->Image.Interlace)) {
    if (DGifGetLine(gif.get(), line.data(), static_cast<int>(frame_width)) == GIF_ERROR) fail_gif(gif->Error);
    std::uint8_t* to = &image.rgb[(std::size_t{top + y} * width + left) * 3];
    for (const GifPixelType index : line) {
      std::memcpy(to, palette[index].data(), 3);
      to += 3;
    }
  }
  if (transparent_index >= 0) image.transparent_colour = around;
  return decoded;
}

}  // namespace heirloom
