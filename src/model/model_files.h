// Opens everything that belongs to a model on disk: a Hugging Face folder, or a GGUF file with an optional mmproj file.
// Nothing is read beyond headers and small texts; weights stay mapped.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "format/gguf.h"
#include "format/tensor_view.h"
#include "model/config.h"
#include "model/model.h"
#include "model/weight_reader.h"

namespace heirloom::model {

struct ModelFiles {
  std::filesystem::path path;
  std::string name;  // for people: general.name, or the folder's name
  WeightReader::Naming naming = WeightReader::Naming::gguf;
  ModelConfig config;
  std::shared_ptr<const TensorSource> text;
  std::shared_ptr<const TensorSource> vision;      // null without a vision part
  std::shared_ptr<const GgufFile> gguf;            // GGUF only: the text file, for tokenizer keys
  std::shared_ptr<const GgufFile> vision_gguf;     // GGUF only: the file with the clip.* keys

  // Texts, empty where there is none.
  std::string tokenizer_json, tokenizer_config_json;  // Hugging Face only
  std::string chat_template;
  std::string preprocessor_json;       // preprocessor_config.json or its equivalent
  std::string generation_config_json;
};

/// Error{bad_file} for a missing, broken or unsupported model; Error{usage} for an mmproj with a folder.
ModelFiles open_model_files(const std::filesystem::path& path, const std::filesystem::path& mmproj = {});

/// Packs the weights into `backend`, which must outlive the model. `progress` may be empty.
std::unique_ptr<Model> bind_model(const ModelFiles& files, ops::Backend& backend,
                                  const std::function<void(double fraction)>& progress = {});

}  // namespace heirloom::model
