// Both processors over sizes and settings beyond the kit's (row I04 of the handed cases and siblings): grids,
// tokens, placeholder text and every pixel, against transformers' own run
// (tests/golden/layouts/make_layouts.py).
#include <gtest/gtest.h>

#include "heirloom/error.h"
#include "image/decode.h"
#include "image/drawn_pictures.h"
#include "image/positions.h"
#include "image/processor.h"
#include "image/reference_files.h"
#include "support/golden.h"

namespace heirloom {
namespace {

using test::golden;

std::size_t count_of(const std::string& text, const std::string& piece) {
  std::size_t count = 0;
  for (std::size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + piece.size()))
    ++count;
  return count;
}

TEST(processor_layouts, grids_tokens_text_and_pixels_match_the_reference_processors) {
  const auto cases = test::read_json(golden("layouts/layouts.json"));
  ASSERT_EQ(cases.size(), 60u);
  for (const auto& entry : cases) {
    SCOPED_TRACE(entry["kind"].dump() + " " + entry["width"].dump() + "x" + entry["height"].dump() + " " +
                 entry["settings"].dump());
    const bool qwen = entry["kind"] == "qwen";
    auto settings = entry["settings"];
    settings["image_processor_type"] = qwen ? "Qwen2VLImageProcessor" : "MiniCPMV4_6ImageProcessor";
    const ImageProcessorConfig config = ImageProcessorConfig::from_json(settings.dump(), "test");
    const ProcessedImage image = process_image(test::drawing(entry["width"], entry["height"]), config);
    nlohmann::json tiles;
    nlohmann::json tokens;
    for (const ImageTile& tile : image.tiles) {
      tiles.push_back({tile.grid_h, tile.grid_w});
      tokens.push_back(tile.tokens);
    }
    EXPECT_EQ(entry["tiles"], tiles);
    EXPECT_EQ(entry["tokens"], tokens);
    if (!qwen && entry["grid_rows_cols"] != nlohmann::json({0, 0})) {
      EXPECT_EQ(entry["grid_rows_cols"], nlohmann::json({image.slice_rows, image.slice_cols}));
    } else {
      EXPECT_EQ(image.slice_rows * image.slice_cols, 0u);
    }
    EXPECT_EQ(entry["pixels_crc32"], test::crc32_of(reference_pixels({&image, 1}, config)));
    const std::string text = placeholder_text(image, config, 2);
    EXPECT_EQ(entry["text_crc32"], test::crc32_of(text));
    // As many placeholders as the tower makes features.
    EXPECT_EQ(count_of(text, "<|image_pad|>"), image.patches() / config.patches_per_token());
    EXPECT_EQ(image.pixels_u8.size(), image.patches() * config.patch_bytes());
  }
}

TEST(processor_layouts, rows_of_any_length_are_resized_to_the_bytes_of_torchvision) {
  const auto cases = test::read_json(golden("layouts/resizes.json"));
  ASSERT_EQ(cases.size(), 30u);
  for (const auto& entry : cases) {
    SCOPED_TRACE(entry.dump());
    const auto filter = entry[4] == "bilinear" ? ResizeFilter::bilinear : ResizeFilter::bicubic;
    EXPECT_EQ(entry[5],
              test::crc32_of(test::resized(test::drawing(entry[0], entry[1]), entry[2], entry[3], filter)));
  }
}

TEST(processor_layouts, slices_run_row_by_row_after_the_overview) {
  // 2 rows x 3 columns of flat colours, in a picture whose slice borders fall on colour borders.
  const ImageProcessorConfig config =
      ImageProcessorConfig::from_json(R"({"image_processor_type": "MiniCPMV4_6ImageProcessor"})", "test");
  Image image{1344, 896, {}, {}};
  for (std::uint32_t y = 0; y < 896; ++y) {
    for (std::uint32_t x = 0; x < 1344; ++x) {
      image.rgb.insert(image.rgb.end(), 3, static_cast<std::uint8_t>(40 * (1 + y / 448 * 3 + x / 448)));
    }
  }
  const ProcessedImage processed = process_image(image, config);
  ASSERT_EQ(processed.slice_rows, 2u);
  ASSERT_EQ(processed.slice_cols, 3u);
  ASSERT_EQ(processed.tiles.size(), 7u);
  for (std::size_t slice = 0; slice < 6; ++slice) {
    const ImageTile& tile = processed.tiles[1 + slice];
    const auto* first = &processed.pixels_u8[tile.first_patch * config.patch_bytes()];
    // Colours mix only at the borders: look at the middle patch.
    const auto* middle = first + (tile.patches() / 2 + tile.grid_w / 2) * config.patch_bytes();
    EXPECT_EQ(*middle, 40 * (slice + 1)) << slice;
  }
}

TEST(processor_layouts, qwen_refuses_pictures_more_than_200_times_as_long_as_wide) {
  ImageProcessorConfig config;
  EXPECT_NO_THROW(qwen_resized({200, 1}, config));
  EXPECT_NO_THROW(qwen_resized({3, 600}, config));
  try {
    qwen_resized({1, 201}, config);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_file);
    EXPECT_NE(std::string(error.what()).find("201x1"), std::string::npos);
  }
}

TEST(processor_layouts, dumps_of_the_kit_hold_the_same_pixels_grids_and_positions) {
  const auto root = test::shared("golden/dumps");
  HEIRLOOM_REQUIRE(root);
  int checked = 0;
  for (const std::string model : {"moe_a", "moe_b", "mini_a", "mini_b"}) {
    for (const auto& file : std::filesystem::directory_iterator(root / model)) {
      if (!file.path().filename().string().starts_with("mm_") || file.path().extension() != ".safetensors")
        continue;
      SCOPED_TRACE(file.path().string());
      auto json_path = file.path();
      const auto info = test::read_json(json_path.replace_extension(".json"));
      const auto dump = test::read_safetensors(file.path());
      const auto text_of = [&](const char* name) {
        const auto bytes = test::read_bytes(golden("models/" + model + "/" + name));
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      };
      ImageProcessorConfig config =
          ImageProcessorConfig::from_json(text_of("preprocessor_config.json"), "preprocessor_config.json");
      EXPECT_EQ(config.to_json(),
                ImageProcessorConfig::from_json(text_of("processor_config.json"), "processor_config.json")
                    .to_json());
      if (info["mode"].is_string())
        config.downsample_mode = parse_downsample_mode(info["mode"].get<std::string>());
      std::vector<ProcessedImage> images;
      std::string prompt = info["prompt"];
      std::size_t at = 0;
      for (const std::string name : info["images"]) {
        images.push_back(process_image(decode_image(test::read_bytes(golden("images/" + name))), config));
        at = prompt.find("<|image_pad|>", at);
        const std::string text = placeholder_text(images.back(), config, images.size() - 1);
        prompt.replace(at, std::string("<|image_pad|>").size(), text);
        at += text.size();
      }
      EXPECT_EQ(info["expanded_prompt"], prompt);
      EXPECT_TRUE(dump.at("vision.pixel_u8").bytes == reference_pixels(images, config));
      if (config.kind == ImageProcessorKind::qwen) {
        std::vector<GridThw> grids;
        std::vector<std::int32_t> flat;
        for (const ProcessedImage& image : images) {
          grids.push_back({1, static_cast<std::int32_t>(image.tiles[0].grid_h),
                           static_cast<std::int32_t>(image.tiles[0].grid_w)});
          flat.insert(flat.end(), {1, grids.back().h, grids.back().w});
        }
        EXPECT_EQ(flat, dump.at("image_grid_thw").values<std::int32_t>());
        EXPECT_EQ(vision_position_ids(grids, 2), dump.at("vision.position_ids").values<std::int32_t>());
        EXPECT_EQ(vision_cu_seqlens(grids), dump.at("vision.cu_seqlens").values<std::int32_t>());
        std::vector<TokenModality> modality;
        for (const std::int32_t type : dump.at("mm_token_type_ids").values<std::int32_t>())
          modality.push_back(static_cast<TokenModality>(type));
        const MropePositions positions = mrope_positions(modality, grids, {}, 2);
        EXPECT_EQ(positions.ids, dump.at("lm.position_ids").values<std::int32_t>());
        EXPECT_EQ(positions.delta, dump.at("rope_delta").values<std::int32_t>()[0]);
      } else {
        std::vector<GridHw> tiles;
        std::vector<std::int32_t> flat;
        for (const ProcessedImage& image : images) {
          for (const ImageTile& tile : image.tiles) {
            tiles.push_back({static_cast<std::int32_t>(tile.grid_h), static_cast<std::int32_t>(tile.grid_w)});
            flat.insert(flat.end(), {tiles.back().h, tiles.back().w});
          }
        }
        EXPECT_EQ(flat, dump.at("target_sizes").values<std::int32_t>());
        const int side = model == "mini_b" ? 70 : 12;
        EXPECT_EQ(nearest_position_ids(tiles, side), dump.at("vision.position_ids").values<std::int32_t>());
        const WindowIndex windows = window_index(tiles);
        EXPECT_EQ(windows.index, dump.at("vision.window_index").values<std::int32_t>());
        EXPECT_EQ(windows.cu_seqlens, dump.at("vision.window_cu_seqlens").values<std::int32_t>());
      }
      ++checked;
    }
  }
  EXPECT_EQ(checked, 12);
}

}  // namespace
}  // namespace heirloom
