// The picture side of an mm_* dump: pictures and prompt from the .json beside it, through our own processor and tokenizer,
// to token ids, positions and the tower's input.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/model_files.h"

namespace heirloom::tools {

struct PicturePrompt {
  std::vector<std::int32_t> token_ids;   // placeholders expanded
  std::vector<std::int32_t> positions;   // [3, tokens]
  std::int32_t rope_delta = 0;           // position of token n after the prompt = n + rope_delta
  model::VisionInput vision;             // all pictures side by side
  model::VisionOutput encoded;           // filled by the caller
  std::vector<model::FeatureRows> features;
  std::int32_t image_token_id = -1;

  // What the dump names of the preprocessing (vision.pixel_u8, image_grid_thw, target_sizes, input_ids, ...).
  std::map<std::string, std::vector<std::int32_t>> ints;
  std::map<std::string, std::vector<float>> floats;

  std::int64_t num_feature_rows() const;
  /// Points each run of placeholders at its rows of `encoded`.
  void place_features();
};

/// Error{bad_file} when the .json or a picture is missing or broken.
PicturePrompt load_picture_prompt(const model::ModelFiles& files, const std::filesystem::path& json_path,
                                  const std::filesystem::path& images, bool want_pixel_values);

}  // namespace heirloom::tools
