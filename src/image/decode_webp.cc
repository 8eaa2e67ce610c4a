// WebP through libwebp: lossy, lossless, with alpha (dropped), and the first frame of an animation on its
// canvas.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>
#include <string_view>

#include "base/check.h"
#include "image/decode_formats.h"
#include "image/exif.h"

namespace heirloom {
namespace {

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};
struct DeleteAnimation {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

std::span<const std::byte> chunk(const WebPDemuxer* demuxer, const char* fourcc) {
  WebPChunkIterator iterator;
  std::span<const std::byte> bytes;
  if (WebPDemuxGetChunk(demuxer, fourcc, 1, &iterator) != 0) {
    bytes = {reinterpret_cast<const std::byte*>(iterator.chunk.bytes),
             iterator.chunk.size};  // points into the file
  }
  WebPDemuxReleaseChunkIterator(&iterator);
  return bytes;
}

int orientation(const WebPDemuxer* demuxer) {
  std::optional<int> found = exif_orientation(chunk(demuxer, "EXIF"));
  if (!found) {
    const auto xmp = chunk(demuxer, "XMP ");
    found = xmp_orientation({reinterpret_cast<const char*>(xmp.data()), xmp.size()});
  }
  return found.value_or(1);
}

/// First frame of an animation, composed on a transparent canvas as libwebp's animation decoder (and so PIL)
/// does.
void decode_first_frame(const WebPData& data, Image& image) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) fail(ErrorKind::internal, "libwebp: incompatible version");
  options.color_mode = MODE_RGBA;
  const std::unique_ptr<WebPAnimDecoder, DeleteAnimation> decoder(WebPAnimDecoderNew(&data, &options));
  std::uint8_t* canvas = nullptr;  // owned by the decoder
  int timestamp_ms = 0;
  if (decoder == nullptr || WebPAnimDecoderGetNext(decoder.get(), &canvas, &timestamp_ms) == 0) {
    fail(ErrorKind::bad_file, "WebP picture: the first frame is damaged");
  }
  const std::size_t pixels = std::size_t{image.width} * image.height;
  for (std::size_t i = 0; i < pixels; ++i) {
    for (std::size_t c = 0; c < 3; ++c) image.rgb[3 * i + c] = canvas[4 * i + c];
  }
}

}  // namespace

DecodedFile decode_webp(std::span<const std::byte> file, const DecodeLimits& limits) {
  const WebPData data{reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
  // The size of the canvas (VP8X) or of the only frame, before the demuxer or a decoder allocates anything.
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(data.bytes, data.size, &features);
  if (status != VP8_STATUS_OK) {
    fail(ErrorKind::bad_file, "WebP picture: {}",
         status == VP8_STATUS_NOT_ENOUGH_DATA ? "truncated, the file ends in the header" : "damaged header");
  }
  check_picture_size("WebP", static_cast<std::uint64_t>(features.width),
                     static_cast<std::uint64_t>(features.height), limits);
  WebPDemuxState state;
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemuxPartial(&data, &state));
  if (demuxer == nullptr || state != WEBP_DEMUX_DONE) {
    fail(ErrorKind::bad_file, "WebP picture: {}",
         state == WEBP_DEMUX_PARSE_ERROR ? "damaged container"
                                         : "truncated, the file ends before the picture does");
  }
  DecodedFile decoded{
      make_image(static_cast<std::uint64_t>(features.width), static_cast<std::uint64_t>(features.height))};
  if (features.has_animation != 0) {
    decode_first_frame(data, decoded.image);
  } else if (WebPDecodeRGBInto(data.bytes, data.size, decoded.image.rgb.data(), decoded.image.rgb.size(),
                               features.width * 3) == nullptr) {
    fail(ErrorKind::bad_file, "WebP picture: damaged data");
  }
  decoded.orientation = orientation(demuxer.get());
  return decoded;
}

}  // namespace heirloom
