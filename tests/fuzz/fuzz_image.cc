// libFuzzer target: any bytes through decode_image, then both processors on what comes out. Seeds:
// tests/golden/pictures.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "image/decode.h"
#include "image/processor.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace heirloom;
  DecodeLimits limits;
  limits.max_pixels = 1 << 18;  // keeps one input fast; the limit itself has unit tests
  limits.max_side = 1 << 16;
  try {
    const Image image = decode_image(std::as_bytes(std::span(data, size)), limits);
    HEIRLOOM_CHECK(image.rgb.size() == std::size_t{image.width} * image.height * 3);
    ImageProcessorConfig config;
    config.min_pixels = 1024;
    config.max_pixels = 65536;
    // The kind and mode vary with the input so that every size rule is met.
    const std::uint8_t choice = size == 0 ? std::uint8_t{0} : data[size / 2];
    if ((choice & 1) != 0) {
      config = ImageProcessorConfig::from_json(
          R"({"image_processor_type": "MiniCPMV4_6ImageProcessor", "scale_resolution": 56})", "fuzz");
      config.downsample_mode = (choice & 2) != 0 ? DownsampleMode::x4 : DownsampleMode::x16;
    }
    const ProcessedImage processed = process_image(image, config);
    HEIRLOOM_CHECK(processed.pixels_u8.size() == processed.patches() * config.patch_bytes());
    HEIRLOOM_CHECK(processed.tokens() * config.patches_per_token() == processed.patches());
    HEIRLOOM_CHECK(!placeholder_text(processed, config, 0).empty());
  } catch (const Error& error) {
    HEIRLOOM_CHECK(error.kind() == ErrorKind::bad_file);
  }
  return 0;
}
