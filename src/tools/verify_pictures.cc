#include "tools/verify_pictures.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "image/decode.h"
#include "image/positions.h"
#include "image/processor.h"
#include "engine/text_side.h"
#include "tools/sequence.h"

namespace heirloom::tools {
namespace {

namespace fs = std::filesystem;

/// The prompt with each picture's placeholder replaced by what its features need.
std::string expand(std::string text, const std::vector<ProcessedImage>& images, const ImageProcessorConfig& config,
                   const std::string& source) {
  const PlaceholderTokens tokens;
  std::string expanded;
  std::size_t from = 0, index = 0;
  for (std::size_t at; (at = text.find(tokens.image, from)) != std::string::npos; from = at + tokens.image.size()) {
    if (index == images.size()) break;
    expanded += text.substr(from, at - from) + placeholder_text(images[index], config, index, tokens);
    ++index;
  }
  if (index != images.size()) {
    fail(ErrorKind::bad_file, "{}: the prompt has {} image placeholders for {} pictures", source, index, images.size());
  }
  return expanded + text.substr(from);
}

}  // namespace

std::int64_t PicturePrompt::num_feature_rows() const {
  return std::count(token_ids.begin(), token_ids.end(), image_token_id);
}

void PicturePrompt::place_features() {
  const auto rows = static_cast<std::int32_t>(token_ids.size());
  std::int32_t used = 0;
  const auto width = static_cast<std::int64_t>(encoded.features.bytes() / sizeof(float)) / std::max<std::int64_t>(encoded.tokens, 1);
  for (std::int32_t row = 0; row < rows;) {
    if (token_ids[static_cast<std::size_t>(row)] != image_token_id) {
      ++row;
      continue;
    }
    std::int32_t end = row;
    while (end < rows && token_ids[static_cast<std::size_t>(end)] == image_token_id) ++end;
    features.push_back({row, end - row, encoded.features.f32() + used * width});
    used += end - row;
    row = end;
  }
}

PicturePrompt load_picture_prompt(const model::ModelFiles& files, const fs::path& json_path, const fs::path& images_folder,
                                  bool want_pixel_values) {
  const std::string source = json_path.string();
  const OrderedJson json = parse_json(read_text_file(json_path), source);
  if (!json.contains("images") || !json.contains("prompt")) {
    fail(ErrorKind::bad_file, "{}: expected the keys images and prompt", source);
  }
  if (!files.config.vision.present) {
    fail(ErrorKind::usage, "{}: a dump with pictures, but the model has no vision part", source);
  }
  ImageProcessorConfig config = ImageProcessorConfig::from_json(files.preprocessor_json, files.path.string());
  const bool minicpm = files.config.family == model::Family::minicpmv4_6;
  const bool four = json.contains("mode") && json["mode"] == "4x";
  if (minicpm) config.downsample_mode = four ? DownsampleMode::x4 : DownsampleMode::x16;

  PicturePrompt prompt;
  prompt.vision.downsample_4x = four;
  prompt.vision.values = normalize_table(config);
  std::vector<ProcessedImage> images;
  std::vector<GridThw> grids;
  for (const OrderedJson& name : json["images"]) {
    const MappedFile file(images_folder / name.get<std::string>());
    const ProcessedImage& image = images.emplace_back(process_image(decode_image(file.bytes()), config));
    prompt.vision.pixels.insert(prompt.vision.pixels.end(), image.pixels_u8.begin(), image.pixels_u8.end());
    for (const ImageTile& tile : image.tiles) {
      const int h = static_cast<int>(tile.grid_h), w = static_cast<int>(tile.grid_w);
      prompt.vision.grids.push_back({1, h, w});
      grids.push_back({1, h, w});
      std::vector<std::int32_t>& sizes = prompt.ints[minicpm ? "target_sizes" : "image_grid_thw"];
      if (!minicpm) sizes.push_back(1);
      sizes.push_back(h);
      sizes.push_back(w);
    }
  }
  const std::vector<std::uint8_t> pixels = reference_pixels(images, config);
  prompt.ints["vision.pixel_u8"].assign(pixels.begin(), pixels.end());
  if (want_pixel_values) {
    // The dump's own order; its three channels share one mean and deviation in every published processor, so the table of
    // the first channel serves all.
    const auto table = normalize_table(config);
    std::vector<float>& values = prompt.floats["vision.pixel_values"];
    for (const std::uint8_t byte : pixels) values.push_back(table[0][byte]);
  }

  const text::Tokenizer tokenizer = engine::open_tokenizer(files);
  const std::string expanded = expand(json["prompt"].get<std::string>(), images, config, source);
  prompt.token_ids = tokenizer.encode(expanded, text::SpecialTokens::parse);
  prompt.ints["input_ids"] = prompt.token_ids;
  prompt.image_token_id = files.config.image_token_id >= 0
                              ? files.config.image_token_id
                              : tokenizer.token_to_id(PlaceholderTokens{}.image).value_or(-1);

  if (minicpm) {
    prompt.positions = text_positions(0, static_cast<std::int32_t>(prompt.token_ids.size()));
  } else {
    std::vector<TokenModality> modality;
    for (const std::int32_t id : prompt.token_ids) {
      modality.push_back(id == prompt.image_token_id ? TokenModality::image : TokenModality::text);
      prompt.ints["mm_token_type_ids"].push_back(static_cast<std::int32_t>(modality.back()));
    }
    MropePositions positions = mrope_positions(modality, grids, {}, files.config.vision.spatial_merge_size);
    prompt.positions = std::move(positions.ids);
    prompt.rope_delta = positions.delta;
    prompt.ints["rope_delta"] = {positions.delta};
  }
  return prompt;
}

}  // namespace heirloom::tools
