// The reference kit's pictures: decoded, resized, preprocessed, all byte for byte.
#include <gtest/gtest.h>

#include <cmath>

#include "heirloom/error.h"
#include "image/decode.h"
#include "image/drawn_pictures.h"
#include "image/processor.h"
#include "image/reference_files.h"
#include "support/golden.h"

namespace heirloom {
namespace {

using test::golden;
using test::read_bytes;
using test::read_json;
using test::read_rgb_png;
using test::read_safetensors;

/// The kit's configuration entry (make_golden.py, _proc_variants) in preprocessor_config.json's spelling.
ImageProcessorConfig config_of(const nlohmann::json& entry) {
  nlohmann::json json;
  if (entry["kind"] == "qwen") {
    json = {{"image_processor_type", "Qwen2VLImageProcessor"},
            {"patch_size", 16},
            {"temporal_patch_size", 2},
            {"merge_size", 2}};
    json["size"] = {{"shortest_edge", entry["shortest_edge"]}, {"longest_edge", entry["longest_edge"]}};
    json["image_mean"] = entry.value("mean", nlohmann::json{0.5, 0.5, 0.5});
    json["image_std"] = entry.value("std", nlohmann::json{0.5, 0.5, 0.5});
  } else {
    json = {{"image_processor_type", "MiniCPMV4_6ImageProcessor"}, {"patch_size", 14}};
    json["max_slice_nums"] = entry.value("max_slice_nums", 9);
    json["scale_resolution"] = entry["scale_resolution"];
    json["slice_mode"] = entry.value("slice_mode", true);
    json["downsample_mode"] = entry.value("mode", "16x");
  }
  return ImageProcessorConfig::from_json(json.dump(), "kit");
}

std::vector<float> normalized(std::span<const ProcessedImage> images, const ImageProcessorConfig& config) {
  const auto table = normalize_table(config);
  const std::vector<std::uint8_t> pixels = reference_pixels(images, config);
  std::vector<float> values(pixels.size());
  // Channel of an element in the dumps' order: outermost for minicpmv, inside each patch for qwen.
  const std::size_t plane =
      config.kind == ImageProcessorKind::qwen ? config.patch_bytes() / 3 : pixels.size() / 3;
  for (std::size_t i = 0; i < pixels.size(); ++i) values[i] = table[i / plane % 3][pixels[i]];
  return values;
}

std::string sha256_of(const std::vector<float>& values) {
  return test::sha256_hex(
      {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)});
}

/// Replaces the n-th image placeholder of a prompt by the text of the n-th picture.
std::string expanded(std::string prompt, std::span<const ProcessedImage> images,
                     const ImageProcessorConfig& config) {
  const std::string pad = "<|image_pad|>";
  std::size_t at = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    at = prompt.find(pad, at);
    const std::string text = placeholder_text(images[i], config, i);
    prompt.replace(at, pad.size(), text);
    at += text.size();
  }
  return prompt;
}

TEST(kit_pictures, decode_to_the_bytes_of_load_image) {
  const auto index_path = golden("images/images.json");
  HEIRLOOM_REQUIRE(index_path);
  int checked = 0;
  const auto kit = read_json(index_path);
  for (const auto& [file, entry] : kit.items()) {
    const auto path = golden("images/" + file);
    if (path.empty()) continue;
    SCOPED_TRACE(file);
    const Image image = decode_image(read_bytes(path));
    EXPECT_EQ(image.width, entry["load_image_size_wh"][0]);
    EXPECT_EQ(image.height, entry["load_image_size_wh"][1]);
    EXPECT_EQ(test::sha256_hex(image.rgb), entry["load_image_sha256"]);
    ++checked;
  }
  EXPECT_GE(checked, 10);
}

TEST(kit_pictures, resize_to_the_bytes_of_torchvision) {
  const auto path = golden("preprocess/preprocess.json");
  HEIRLOOM_REQUIRE(path);
  int checked = 0;
  const auto kit = read_json(path);
  for (const auto& [name, pictures] : kit["results"].items()) {
    for (const auto& [file, entry] : pictures.items()) {
      if (file == "__two__") continue;
      for (std::size_t k = 0; k < entry["torchvision"]["resized_hw"].size(); ++k) {
        const auto expected_path =
            golden("preprocess/" + name + "/" + file + ".resized" + std::to_string(k) + ".png");
        auto source_path = golden("images/decoded/" + file + ".pipeline.png");
        if (source_path.empty()) source_path = golden("images/decoded/" + file + ".load_image.png");
        if (source_path.empty()) source_path = golden("images/" + file);
        if (expected_path.empty() || source_path.empty() || source_path.extension() != ".png") continue;
        SCOPED_TRACE(expected_path.string());
        const auto source = read_rgb_png(source_path);
        const auto expected = read_rgb_png(expected_path);
        EXPECT_EQ(expected.height, entry["torchvision"]["resized_hw"][k][0]);
        const Image image{source.width, source.height, source.rgb, {}};
        EXPECT_TRUE(test::resized(image, expected.width, expected.height, ResizeFilter::bicubic) ==
                    expected.rgb);
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 8);
}

TEST(kit_pictures, preprocess_to_the_values_of_the_reference_processors) {
  const auto path = golden("preprocess/preprocess.json");
  HEIRLOOM_REQUIRE(path);
  const auto kit = read_json(path);
  int checked = 0;
  for (const auto& [name, pictures] : kit["results"].items()) {
    const ImageProcessorConfig config = config_of(kit["configs"][name]);
    for (const auto& [file, entry] : pictures.items()) {
      if (file == "__two__") continue;
      const auto picture = golden("images/" + file);
      if (picture.empty()) continue;
      SCOPED_TRACE(name + " " + file);
      const auto& expected = entry["torchvision"];
      const ProcessedImage image = process_image(decode_image(read_bytes(picture)), config);
      if (config.kind == ImageProcessorKind::qwen) {
        ASSERT_EQ(image.tiles.size(), 1u);
        EXPECT_EQ(expected["image_grid_thw"],
                  nlohmann::json({{1, image.tiles[0].grid_h, image.tiles[0].grid_w}}));
        EXPECT_EQ(expected["n_image_tokens"], image.tokens());
      } else {
        nlohmann::json sizes;
        nlohmann::json tokens;
        for (const ImageTile& tile : image.tiles) {
          sizes.push_back({tile.grid_h, tile.grid_w});
          tokens.push_back(tile.tokens);
        }
        EXPECT_EQ(expected["target_sizes"], sizes);
        EXPECT_EQ(expected["n_image_tokens_per_tile"], tokens);
        EXPECT_EQ(expected["grid_rows_cols"], nlohmann::json({{image.slice_rows, image.slice_cols}}));
      }
      EXPECT_EQ(expected["pixel_values_sha256"], sha256_of(normalized({&image, 1}, config)));
      EXPECT_EQ(entry["expanded_prompt"], expanded(entry["prompt"], {&image, 1}, config));
      ++checked;
    }
  }
  EXPECT_GE(checked, 20);
}

TEST(kit_pictures, number_the_pictures_of_one_prompt_from_zero) {
  const auto path = golden("preprocess/preprocess.json");
  HEIRLOOM_REQUIRE(path);
  const auto kit = read_json(path);
  int checked = 0;
  for (const auto& [name, pictures] : kit["results"].items()) {
    if (!pictures.contains("__two__")) continue;
    SCOPED_TRACE(name);
    const ImageProcessorConfig config = config_of(kit["configs"][name]);
    const auto& entry = pictures["__two__"];
    std::vector<ProcessedImage> images;
    for (const std::string file : entry["images"]) {
      const auto picture = golden("images/" + file);
      if (!picture.empty()) images.push_back(process_image(decode_image(read_bytes(picture)), config));
    }
    if (images.size() < 2) continue;
    EXPECT_EQ(entry["expanded_prompt"], expanded(entry["prompt"], images, config));
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

TEST(kit_pictures, normalise_every_byte_in_the_order_of_torchvision) {
  const auto path = golden("preprocess/normalize_lut.safetensors");
  const auto kit_path = golden("preprocess/preprocess.json");
  HEIRLOOM_REQUIRE(path);
  HEIRLOOM_REQUIRE(kit_path);
  const auto tables = read_safetensors(path);
  const auto kit = read_json(kit_path);
  for (const auto& [name, entry] : kit["configs"].items()) {
    SCOPED_TRACE(name);
    const std::vector<float> expected = tables.at(name + ".torchvision").values<float>();
    const ImageProcessorConfig config = config_of(entry);
    const auto table = normalize_table(config);
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t value = 0; value < 256; ++value) ASSERT_EQ(table[c][value], expected[c * 256 + value]);
    }
  }
}

TEST(kit_pictures, resize_targets_and_slice_grids_match_for_every_size_of_the_kit) {
  const auto path = golden("preprocess/geometry.json");
  HEIRLOOM_REQUIRE(path);
  ImageProcessorConfig qwen;
  qwen.min_pixels = 65536;
  qwen.max_pixels = 16777216;
  int errors = 0;
  int cases = 0;
  const auto kit = read_json(path);
  for (const auto& entry : kit["cases"]) {
    const PictureSize size{entry["hw"][0], entry["hw"][1]};
    SCOPED_TRACE(entry["hw"].dump());
    ++cases;
    if (entry["qwen"] == "error") {
      EXPECT_THROW(qwen_resized(size, qwen), Error);
      ++errors;
    } else {
      EXPECT_EQ(qwen_resized(size, qwen), (PictureSize{entry["qwen"][0], entry["qwen"][1]}));
    }
    for (const std::string mode : {"16x", "4x"}) {
      SCOPED_TRACE(mode);
      ImageProcessorConfig mini =
          ImageProcessorConfig::from_json(R"({"image_processor_type": "MiniCPMV4_6ImageProcessor"})", "test");
      mini.downsample_mode = parse_downsample_mode(mode);
      const auto& expected = entry["mini_" + mode];
      const MiniCpmLayout layout = minicpm_layout(size, mini);
      EXPECT_EQ(layout.overview, (PictureSize{expected["source_hw"][0], expected["source_hw"][1]}));
      if (expected["grid_rows_cols"].is_null()) {
        EXPECT_EQ(layout.rows, 0u);
        EXPECT_EQ(layout.cols, 0u);
      } else {
        EXPECT_EQ(expected["grid_rows_cols"], nlohmann::json({layout.rows, layout.cols}));
        EXPECT_EQ(layout.refined, (PictureSize{expected["refine_hw"][0], expected["refine_hw"][1]}));
      }
    }
  }
  EXPECT_EQ(cases, 337);
  EXPECT_EQ(errors, 27);
}

}  // namespace
}  // namespace heirloom
