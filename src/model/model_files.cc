#include "model/model_files.h"

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "format/gguf_parts.h"
#include "format/safetensors.h"

namespace heirloom::model {
namespace {

namespace fs = std::filesystem;

std::string read_if_present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? read_text_file(path) : std::string();
}

ModelFiles open_folder(const fs::path& path) {
  ModelFiles files;
  files.path = path;
  files.name = path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
  files.naming = WeightReader::Naming::hugging_face;
  if (!fs::exists(path / "config.json")) {
    fail(ErrorKind::bad_file, "{}: no config.json in this folder; expected a Hugging Face model folder or a .gguf file",
         path.string());
  }
  files.config = config_from_json(read_text_file(path / "config.json"), (path / "config.json").string());
  files.text = std::make_shared<SafetensorsFolder>(path);
  if (files.config.vision.present) files.vision = files.text;
  files.tokenizer_json = read_if_present(path / "tokenizer.json");
  files.tokenizer_config_json = read_if_present(path / "tokenizer_config.json");
  files.generation_config_json = read_if_present(path / "generation_config.json");
  files.chat_template = read_if_present(path / "chat_template.jinja");
  if (files.chat_template.empty() && !files.tokenizer_config_json.empty()) {
    const OrderedJson config = parse_json(files.tokenizer_config_json, (path / "tokenizer_config.json").string());
    if (config.is_object() && config.contains("chat_template") && config["chat_template"].is_string()) {
      files.chat_template = config["chat_template"].get<std::string>();
    }
  }
  files.preprocessor_json = read_if_present(path / "preprocessor_config.json");
  if (files.preprocessor_json.empty()) {  // transformers 5 keeps everything in processor_config.json
    const std::string processor = read_if_present(path / "processor_config.json");
    if (!processor.empty()) {
      const OrderedJson config = parse_json(processor, (path / "processor_config.json").string());
      if (config.is_object() && config.contains("image_processor")) {
        files.preprocessor_json = config["image_processor"].dump();
      }
    }
  }
  return files;
}

/// The processor's settings in an mmproj of llama.cpp's converter, in preprocessor_config.json's words.
std::string preprocessor_from_clip_keys(const GgufFile& file, Family family) {
  const GgufMetadata& keys = file.metadata();
  OrderedJson json;
  json["image_mean"] = keys.get_f32s("clip.vision.image_mean");
  json["image_std"] = keys.get_f32s("clip.vision.image_std");
  json["patch_size"] = keys.get_count("clip.vision.patch_size");
  if (family == Family::minicpmv4_6) {
    json["image_processor_type"] = "MiniCPMV4_6ImageProcessor";
    json["scale_resolution"] = keys.get_count("clip.vision.image_size");
    json["downsample_mode"] = keys.find_count("clip.vision.projector.scale_factor").value_or(4) == 2 ? "4x" : "16x";
  } else {
    json["image_processor_type"] = "Qwen2VLImageProcessor";
    json["merge_size"] = keys.find_count("clip.vision.spatial_merge_size").value_or(2);
    json["temporal_patch_size"] = 2;
    const auto min_pixels = keys.find_u64("clip.vision.image_min_pixels");
    const auto max_pixels = keys.find_u64("clip.vision.image_max_pixels");
    if (min_pixels) json["min_pixels"] = *min_pixels;
    if (max_pixels) json["max_pixels"] = *max_pixels;
  }
  return json.dump();
}

ModelFiles open_gguf(const fs::path& path, const fs::path& mmproj) {
  ModelFiles files;
  files.path = path;
  files.gguf = std::make_shared<GgufFile>(path);
  files.text = gguf_tensors(files.gguf);
  if (!mmproj.empty()) {
    files.vision_gguf = std::make_shared<GgufFile>(mmproj);
    if (!files.vision_gguf->metadata().has("clip.projector_type")) {
      fail(ErrorKind::bad_file, "{}: no clip.projector_type; expected the vision part (mmproj) of a model", mmproj.string());
    }
  } else if (files.gguf->metadata().has("clip.projector_type")) {
    files.vision_gguf = files.gguf;
  }
  files.vision = files.vision_gguf;
  const GgufMetadata& keys = files.gguf->metadata();
  files.config = config_from_gguf(*files.gguf, files.vision_gguf.get());
  files.name = std::string(keys.find_string("general.name").value_or(path.stem().string()));
  files.chat_template = std::string(keys.find_string("tokenizer.chat_template").value_or(""));
  files.generation_config_json = std::string(keys.find_string("heirloom.generation_config").value_or(""));
  if (files.vision_gguf) {
    const GgufMetadata& vision_keys = files.vision_gguf->metadata();
    const auto own = vision_keys.find_string("heirloom.preprocessor_config");
    files.preprocessor_json =
        own ? std::string(*own) : preprocessor_from_clip_keys(*files.vision_gguf, files.config.family);
  }
  return files;
}

}  // namespace

ModelFiles open_model_files(const fs::path& path, const fs::path& mmproj) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    fail(ErrorKind::bad_file, "{}: no such file or folder; expected a .gguf file, a Hugging Face folder or a bundled name (demo-vl, demo-moe)",
         path.string());
  }
  if (fs::is_directory(status)) {
    if (!mmproj.empty()) {
      fail(ErrorKind::usage, "--mmproj goes with a .gguf file; the folder {} has its own vision part", path.string());
    }
    return open_folder(path);
  }
  return open_gguf(path, mmproj);
}

}  // namespace heirloom::model
