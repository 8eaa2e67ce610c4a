// Reading and writing of processor settings, and what depends on them.
#include <gtest/gtest.h>

#include "heirloom/error.h"
#include "image/processor.h"

namespace heirloom {
namespace {

std::string error_of(const std::string& text) {
  try {
    ImageProcessorConfig::from_json(text, "preprocessor_config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_file);
    return error.what();
  }
  return "no error";
}

Image flat(std::uint32_t width, std::uint32_t height, std::uint8_t value) {
  return {width, height, std::vector<std::uint8_t>(std::size_t{width} * height * 3, value), {}};
}

TEST(processor_config, reads_sizes_in_both_spellings) {
  const auto edges = ImageProcessorConfig::from_json(
      R"({"image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 4096, "longest_edge": 16384}})",
      "test");
  EXPECT_EQ(edges.min_pixels, 4096u);
  EXPECT_EQ(edges.max_pixels, 16384u);
  const auto pixels = ImageProcessorConfig::from_json(
      R"({"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 4096, "max_pixels": 16384})",
      "test");
  EXPECT_EQ(pixels.min_pixels, 4096u);
  EXPECT_EQ(pixels.max_pixels, 16384u);
  // Both: the old spelling wins, as in transformers.
  const auto both = ImageProcessorConfig::from_json(
      R"({"merge_size": 2, "min_pixels": 1024, "size": {"shortest_edge": 4096, "longest_edge": 16384}})",
      "test");
  EXPECT_EQ(both.min_pixels, 1024u);
  EXPECT_EQ(both.max_pixels, 16384u);
}

TEST(processor_config, survives_a_round_trip_through_json) {
  for (const char* text :
       {R"({"image_processor_type": "Qwen2VLImageProcessor", "image_mean": [0.1, 0.2, 0.3], "patch_size": 16,
                               "size": {"shortest_edge": 77, "longest_edge": 9999}, "resample": 2, "rescale_factor": 0.00392156862745098})",
        R"({"image_processor_type": "MiniCPMV4_6ImageProcessor", "downsample_mode": "4x", "slice_mode": false,
                               "max_slice_nums": 4, "use_image_id": false, "scale_resolution": 112})"}) {
    const auto config = ImageProcessorConfig::from_json(text, "test");
    const auto again = ImageProcessorConfig::from_json(config.to_json(), "test");
    EXPECT_EQ(config.to_json(), again.to_json());
    EXPECT_EQ(config.kind, again.kind);
    EXPECT_EQ(config.image_mean, again.image_mean);
    EXPECT_EQ(config.rescale_factor, again.rescale_factor);
    EXPECT_EQ(config.min_pixels, again.min_pixels);
    EXPECT_EQ(config.slice_mode, again.slice_mode);
    EXPECT_EQ(config.downsample_mode, again.downsample_mode);
  }
}

TEST(processor_config, takes_the_image_part_of_processor_config_json) {
  const auto config = ImageProcessorConfig::from_json(
      R"({"processor_class": "X", "image_processor": {"image_processor_type": "MiniCPMV4_6ImageProcessor", "scale_resolution": 112},
          "video_processor": {"scale_resolution": 448}})",
      "test");
  EXPECT_EQ(config.kind, ImageProcessorKind::minicpmv);
  EXPECT_EQ(config.scale_resolution, 112u);
}

TEST(processor_config, says_which_key_of_which_file_is_wrong) {
  const std::string qwen = R"({"image_processor_type": "Qwen2VLImageProcessor", )";
  EXPECT_NE(error_of(qwen + R"("patch_size": 0})").find("preprocessor_config.json: patch_size is 0"),
            std::string::npos);
  EXPECT_NE(error_of(qwen + R"("patch_size": "16"})").find("patch_size"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("merge_size": -2})").find("merge_size"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("size": 5})").find("size"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("size": {"longest_edge": 1e99}})").find("longest_edge"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("min_pixels": 100, "max_pixels": 50})").find("at least 100"),
            std::string::npos);
  EXPECT_NE(error_of(qwen + R"("image_std": [1, 0, 1]})").find("image_std"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("image_mean": [1, 2]})").find("image_mean"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("rescale_factor": 0})").find("rescale_factor"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("resample": 1})").find("resample"), std::string::npos);
  EXPECT_NE(error_of(qwen + R"("do_resize": false})").find("do_resize"), std::string::npos);
  EXPECT_NE(error_of(R"({"image_processor_type": "MiniCPMV4_6ImageProcessor", "downsample_mode": "2x"})")
                .find("downsample_mode"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"image_processor_type": "CLIPImageProcessor"})").find("CLIPImageProcessor"),
            std::string::npos);
  EXPECT_NE(error_of("{}").find("image_processor_type"), std::string::npos);
  EXPECT_NE(error_of("[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_of("{").find("invalid JSON"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '[')).find("nested"), std::string::npos);
}

TEST(processor_config, unknown_down_sampling_modes_are_usage_errors) {
  EXPECT_EQ(parse_downsample_mode("4x"), DownsampleMode::x4);
  EXPECT_THROW(parse_downsample_mode("8x"), Error);
}

TEST(processor_config, content_hash_tells_pixels_sizes_and_settings_apart) {
  const ImageProcessorConfig qwen;
  const auto hash = [](const Image& image, const ImageProcessorConfig& config) {
    return process_image(image, config).content_hash;
  };
  Image image = flat(40, 20, 7);
  const auto base = hash(image, qwen);
  EXPECT_EQ(hash(image, qwen), base);
  EXPECT_NE(hash(flat(20, 40, 7), qwen), base);
  image.rgb[5] = 8;
  EXPECT_NE(hash(image, qwen), base);
  ImageProcessorConfig other = qwen;
  other.max_pixels /= 2;
  EXPECT_NE(hash(flat(40, 20, 7), other), base);
  // A transparent colour counts as what it is painted to.
  Image transparent = flat(40, 20, 7);
  transparent.transparent_colour = {7, 7, 7};
  EXPECT_EQ(hash(transparent, qwen), hash(flat(40, 20, 255), qwen));
}

}  // namespace
}  // namespace heirloom
