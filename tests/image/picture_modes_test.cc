// Every mode, sampling, container and orientation of tests/golden/pictures against PIL's pixels (rows I01 and
// I02 of the handed cases and their siblings). make_pictures.py there made files and expectations.
#include <gtest/gtest.h>

#include "image/decode.h"
#include "image/processor.h"
#include "image/reference_files.h"
#include "support/golden.h"

namespace heirloom {
namespace {

using test::golden;

struct Listed {
  std::string file;
  bool white = false;
};

std::vector<Listed> listed(const std::string& extension) {
  std::vector<Listed> result;
  const auto index = test::read_json(golden("pictures/pictures.json"));
  for (const auto& entry : index) {
    const std::string file = entry["file"];
    if (file.ends_with(extension)) result.push_back({file, entry.value("white", false)});
  }
  return result;
}

void expect_same_pixels(const std::string& extension, std::size_t at_least) {
  const auto files = listed(extension);
  EXPECT_GE(files.size(), at_least);
  for (const Listed& entry : files) {
    SCOPED_TRACE(entry.file);
    Image image;
    ASSERT_NO_THROW(image = decode_image(test::read_bytes(golden("pictures/" + entry.file))));
    const auto expected = test::read_rgb_png(golden("pictures/" + entry.file + ".rgb.png"));
    EXPECT_EQ(image.width, expected.width);
    EXPECT_EQ(image.height, expected.height);
    EXPECT_TRUE(image.rgb == expected.rgb);
  }
}

TEST(picture_modes, png_decodes_to_the_pixels_of_pil) {
  expect_same_pixels(".png", 60);
}
TEST(picture_modes, jpeg_decodes_to_the_pixels_of_pil) {
  expect_same_pixels(".jpg", 40);
}
TEST(picture_modes, webp_decodes_to_the_pixels_of_pil) {
  expect_same_pixels(".webp", 12);
}
TEST(picture_modes, bmp_decodes_to_the_pixels_of_pil) {
  expect_same_pixels(".bmp", 18);
}
TEST(picture_modes, gif_decodes_to_the_pixels_of_pil) {
  expect_same_pixels(".gif", 12);
}

/// The picture as a processor sees it: a configuration that neither resizes nor reorders pixels (1 x 1
/// patches).
std::vector<std::uint8_t> seen_by_processor(const Image& image) {
  ImageProcessorConfig config;
  config.patch_size = 1;
  config.merge_size = 1;
  config.temporal_patch_size = 1;
  config.min_pixels = 1;
  return process_image(image, config).pixels_u8;
}

TEST(picture_modes, a_single_transparent_colour_reaches_the_model_as_white) {
  int painted = 0;
  int untouched = 0;
  for (const std::string extension : {".png", ".gif", ".bmp", ".webp", ".jpg"}) {
    for (const Listed& entry : listed(extension)) {
      SCOPED_TRACE(entry.file);
      const Image image = decode_image(test::read_bytes(golden("pictures/" + entry.file)));
      const auto expected =
          test::read_rgb_png(golden("pictures/" + entry.file + (entry.white ? ".white.png" : ".rgb.png")));
      EXPECT_TRUE(seen_by_processor(image) == expected.rgb);
      ++(entry.white ? painted : untouched);
    }
  }
  EXPECT_GE(painted, 10);
  EXPECT_GE(untouched, 100);
}

}  // namespace
}  // namespace heirloom
