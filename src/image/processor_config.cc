// ImageProcessorConfig from and to preprocessor_config.json.
#include <cmath>

#include "base/check.h"
#include "base/json.h"
#include "image/processor.h"

namespace heirloom {
namespace {

/// Typed access to one JSON object, with errors that name the file and the key. A null counts as absent, as
/// in Python.
class Keys {
 public:
  Keys(const OrderedJson& object, std::string_view source) : object_(object), source_(source) {}

  const OrderedJson* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  bool flag(const char* key, bool otherwise) const {
    const OrderedJson* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong(key, *value, "true or false");
    return value->get<bool>();
  }
  std::uint64_t count(const char* key, std::uint64_t otherwise, std::uint64_t most) const {
    const OrderedJson* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > most) {
      wrong(key, *value, fmt::format("a whole number from 1 to {}", most));
    }
    return value->get<std::uint64_t>();
  }
  double number(const char* key, double otherwise) const {
    const OrderedJson* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) wrong(key, *value, "a number");
    return value->get<double>();
  }
  std::string text(const char* key, std::string_view otherwise) const {
    const OrderedJson* value = find(key);
    if (value == nullptr) return std::string(otherwise);
    if (!value->is_string()) wrong(key, *value, "a string");
    return value->get<std::string>();
  }
  /// One number for all channels, or three.
  std::array<double, 3> channels(const char* key, std::array<double, 3> otherwise) const {
    const OrderedJson* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number()) return {value->get<double>(), value->get<double>(), value->get<double>()};
    if (!value->is_array() || value->size() != 3) wrong(key, *value, "three numbers");
    std::array<double, 3> result{};
    for (std::size_t i = 0; i < 3; ++i) {
      if (!(*value)[i].is_number()) wrong(key, *value, "three numbers");
      result[i] = (*value)[i].get<double>();
    }
    return result;
  }
  [[noreturn]] void wrong(const char* key, const OrderedJson& found, std::string_view expected) const {
    std::string shown = found.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
    fail(ErrorKind::bad_file, "{}: {} is {}, expected {}", source_, key, shown, expected);
  }

 private:
  const OrderedJson& object_;
  std::string_view source_;
};

void require_on(const Keys& keys, const char* key) {
  if (!keys.flag(key, true)) keys.wrong(key, *keys.find(key), "true: this engine has no other way");
}

ImageProcessorKind kind_of(const Keys& keys, std::string_view source) {
  const std::string type = keys.text("image_processor_type", "");
  if (type.find("MiniCPMV") != std::string::npos) return ImageProcessorKind::minicpmv;
  if (type.find("Qwen2VL") != std::string::npos || type.find("Qwen3VL") != std::string::npos)
    return ImageProcessorKind::qwen;
  if (type.empty()) {
    if (keys.find("scale_resolution") != nullptr) return ImageProcessorKind::minicpmv;
    if (keys.find("merge_size") != nullptr) return ImageProcessorKind::qwen;
  }
  fail(ErrorKind::bad_file,
       "{}: image_processor_type is \"{}\", expected Qwen2VLImageProcessor or MiniCPMV4_6ImageProcessor",
       source, type);
}

ResizeFilter filter_of(const Keys& keys) {
  const std::uint64_t resample = keys.count("resample", 3, 5);  // PIL's numbers
  if (resample != 2 && resample != 3)
    keys.wrong("resample", *keys.find("resample"), "2 (bilinear) or 3 (bicubic)");
  return resample == 2 ? ResizeFilter::bilinear : ResizeFilter::bicubic;
}

void read_qwen(const Keys& keys, std::string_view source, ImageProcessorConfig& config) {
  constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 28;
  config.patch_size = static_cast<std::uint32_t>(keys.count("patch_size", 14, 64));
  config.temporal_patch_size = static_cast<std::uint32_t>(keys.count("temporal_patch_size", 2, 8));
  config.merge_size = static_cast<std::uint32_t>(keys.count("merge_size", 2, 8));
  config.min_pixels = 56 * 56;
  config.max_pixels = 28 * 28 * 1280;
  if (const OrderedJson* size = keys.find("size"); size != nullptr) {
    if (!size->is_object()) keys.wrong("size", *size, "an object with shortest_edge and longest_edge");
    const Keys inner(*size, source);
    config.min_pixels =
        inner.count("shortest_edge", inner.count("min_pixels", config.min_pixels, kMostPixels), kMostPixels);
    config.max_pixels =
        inner.count("longest_edge", inner.count("max_pixels", config.max_pixels, kMostPixels), kMostPixels);
  }
  // The older spelling wins where both are present, as in the reference.
  config.min_pixels = keys.count("min_pixels", config.min_pixels, kMostPixels);
  config.max_pixels = keys.count("max_pixels", config.max_pixels, kMostPixels);
  if (config.min_pixels > config.max_pixels) {
    fail(ErrorKind::bad_file, "{}: at least {} pixels but at most {}, expected a range", source,
         config.min_pixels, config.max_pixels);
  }
}

void read_minicpmv(const Keys& keys, ImageProcessorConfig& config) {
  config.patch_size = static_cast<std::uint32_t>(keys.count("patch_size", 14, 64));
  config.temporal_patch_size = 1;
  config.merge_size = 1;
  config.scale_resolution = static_cast<std::uint32_t>(keys.count("scale_resolution", 448, 4096));
  config.max_slice_nums = static_cast<std::uint32_t>(keys.count("max_slice_nums", 9, 256));
  config.slice_mode = keys.flag("slice_mode", true);
  config.use_image_id = keys.flag("use_image_id", true);
  const std::string mode = keys.text("downsample_mode", "16x");
  if (mode != "16x" && mode != "4x")
    keys.wrong("downsample_mode", *keys.find("downsample_mode"), "\"16x\" or \"4x\"");
  config.downsample_mode = mode == "4x" ? DownsampleMode::x4 : DownsampleMode::x16;
}

}  // namespace

DownsampleMode parse_downsample_mode(std::string_view text) {
  if (text == "16x") return DownsampleMode::x16;
  if (text == "4x") return DownsampleMode::x4;
  fail(ErrorKind::usage, "down-sampling mode \"{}\", expected 16x or 4x", text);
}

ImageProcessorConfig ImageProcessorConfig::from_json(std::string_view text, std::string_view source) {
  constexpr int kMostDepth = 16;
  const OrderedJson root = parse_json(text, source, ErrorKind::bad_file, kMostDepth);
  if (!root.is_object()) fail(ErrorKind::bad_file, "{}: not a JSON object", source);
  const auto inner = root.find("image_processor");  // processor_config.json of transformers 5
  const OrderedJson& object = inner != root.end() && inner->is_object() ? *inner : root;
  const Keys keys(object, source);

  ImageProcessorConfig config;
  config.kind = kind_of(keys, source);
  for (const char* key : {"do_resize", "do_convert_rgb"}) require_on(keys, key);
  config.filter = filter_of(keys);
  config.do_rescale = keys.flag("do_rescale", true);
  config.do_normalize = keys.flag("do_normalize", true);
  config.rescale_factor = keys.number("rescale_factor", 1.0 / 255.0);
  const bool qwen = config.kind == ImageProcessorKind::qwen;
  // The defaults of the two reference classes: OpenAI's CLIP statistics, and 0.5.
  config.image_mean = keys.channels(
      "image_mean", qwen ? std::array{0.48145466, 0.4578275, 0.40821073} : std::array{0.5, 0.5, 0.5});
  config.image_std = keys.channels(
      "image_std", qwen ? std::array{0.26862954, 0.26130258, 0.27577711} : std::array{0.5, 0.5, 0.5});
  if (!std::isfinite(config.rescale_factor) || config.rescale_factor == 0.0) {
    fail(ErrorKind::bad_file, "{}: rescale_factor is {}, expected a number other than 0", source,
         config.rescale_factor);
  }
  for (const double value : config.image_std) {
    if (!std::isfinite(value) || value == 0.0) {
      fail(ErrorKind::bad_file, "{}: image_std holds {}, expected numbers other than 0", source, value);
    }
  }
  if (qwen) {
    read_qwen(keys, source, config);
  } else {
    read_minicpmv(keys, config);
  }
  return config;
}

std::string ImageProcessorConfig::to_json() const {
  OrderedJson json;
  const bool qwen = kind == ImageProcessorKind::qwen;
  json["image_processor_type"] = qwen ? "Qwen2VLImageProcessor" : "MiniCPMV4_6ImageProcessor";
  json["patch_size"] = patch_size;
  json["resample"] = filter == ResizeFilter::bilinear ? 2 : 3;
  json["do_rescale"] = do_rescale;
  json["do_normalize"] = do_normalize;
  json["rescale_factor"] = rescale_factor;
  json["image_mean"] = image_mean;
  json["image_std"] = image_std;
  if (qwen) {
    json["temporal_patch_size"] = temporal_patch_size;
    json["merge_size"] = merge_size;
    json["size"] = {{"shortest_edge", min_pixels}, {"longest_edge", max_pixels}};
  } else {
    json["scale_resolution"] = scale_resolution;
    json["max_slice_nums"] = max_slice_nums;
    json["slice_mode"] = slice_mode;
    json["downsample_mode"] = downsample_mode == DownsampleMode::x4 ? "4x" : "16x";
    json["use_image_id"] = use_image_id;
  }
  return json.dump();
}

std::uint32_t ImageProcessorConfig::patches_per_token() const {
  if (kind == ImageProcessorKind::qwen) return merge_size * merge_size;
  return downsample_mode == DownsampleMode::x4 ? 4 : 16;
}

std::size_t ImageProcessorConfig::patch_bytes() const {
  return std::size_t{3} * temporal_patch_size * patch_size * patch_size;
}

}  // namespace heirloom
