// config.json of a Hugging Face folder -> ModelConfig.
#include <cmath>

#include "base/check.h"
#include "base/json.h"
#include "model/config.h"

namespace heirloom::model {
namespace {

/// Reads keys of one JSON object with errors that name file and key.
class Fields {
 public:
  Fields(const OrderedJson& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ErrorKind::bad_file, "{}: expected a JSON object", where_);
  }

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  int integer(const char* key) const {
    const OrderedJson& value = get(key);
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > (1 << 30)) {
      fail(ErrorKind::bad_file, "{}: {} is {}, expected a whole number of at most 2^30", where_, key, short_dump(value));
    }
    return value.get<int>();
  }
  int integer(const char* key, int fallback) const { return has(key) ? integer(key) : fallback; }
  int positive(const char* key) const {
    const int value = integer(key);
    if (value == 0) fail(ErrorKind::bad_file, "{}: {} is 0, expected at least 1", where_, key);
    return value;
  }
  double number(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const OrderedJson& value = object_.at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fail(ErrorKind::bad_file, "{}: {} is {}, expected a number", where_, key, short_dump(value));
    }
    return value.get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    const OrderedJson& value = object_.at(key);
    if (!value.is_boolean()) fail(ErrorKind::bad_file, "{}: {} is {}, expected true or false", where_, key, short_dump(value));
    return value.get<bool>();
  }
  std::string string(const char* key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    const OrderedJson& value = object_.at(key);
    if (!value.is_string()) fail(ErrorKind::bad_file, "{}: {} is {}, expected a string", where_, key, short_dump(value));
    return value.get<std::string>();
  }
  const OrderedJson& get(const char* key) const {
    if (!has(key)) fail(ErrorKind::bad_file, "{}: {} is missing", where_, key);
    return object_.at(key);
  }
  const std::string& where() const { return where_; }

 private:
  static std::string short_dump(const OrderedJson& value) {
    std::string text = value.is_structured() ? value.type_name() : value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    return text;
  }

  const OrderedJson& object_;
  std::string where_;
};

void read_layer_types(const Fields& fields, TextConfig& text) {
  if (fields.has("layer_types")) {
    const OrderedJson& types = fields.get("layer_types");
    if (!types.is_array() || types.size() != static_cast<std::size_t>(text.num_layers)) {
      fail(ErrorKind::bad_file, "{}: layer_types has {} entries, num_hidden_layers is {}", fields.where(), types.size(),
           text.num_layers);
    }
    for (const OrderedJson& type : types) {
      if (type == "linear_attention") {
        text.layer_types.push_back(LayerType::linear_attention);
      } else if (type == "full_attention") {
        text.layer_types.push_back(LayerType::full_attention);
      } else {
        fail(ErrorKind::bad_file, "{}: layer type {} is not supported; known are linear_attention and full_attention",
             fields.where(), type.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
      }
    }
    return;
  }
  const int interval = fields.integer("full_attention_interval", 4);
  if (interval == 0) fail(ErrorKind::bad_file, "{}: full_attention_interval is 0", fields.where());
  for (int i = 0; i < text.num_layers; ++i) {
    text.layer_types.push_back((i + 1) % interval == 0 ? LayerType::full_attention : LayerType::linear_attention);
  }
}

void read_text(const Fields& fields, bool moe, TextConfig& text) {
  text.vocab_size = fields.positive("vocab_size");
  text.hidden_size = fields.positive("hidden_size");
  text.num_layers = fields.positive("num_hidden_layers");
  text.num_q_heads = fields.positive("num_attention_heads");
  text.num_kv_heads = fields.integer("num_key_value_heads", text.num_q_heads);
  text.head_dim = fields.integer("head_dim", 256);
  text.linear_num_k_heads = fields.integer("linear_num_key_heads", 16);
  text.linear_num_v_heads = fields.integer("linear_num_value_heads", 32);
  text.linear_head_k_dim = fields.integer("linear_key_head_dim", 128);
  text.linear_head_v_dim = fields.integer("linear_value_head_dim", 128);
  text.linear_conv_kernel = fields.integer("linear_conv_kernel_dim", 4);
  text.rms_norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-6));
  text.context_length = fields.integer("max_position_embeddings", 32768);
  text.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  if (!fields.boolean("attn_output_gate", true)) {
    fail(ErrorKind::bad_file, "{}: attn_output_gate is false; only gated attention is supported", fields.where());
  }
  if (fields.boolean("attention_bias", false)) {
    fail(ErrorKind::bad_file, "{}: attention_bias is true; biases in attention are not supported", fields.where());
  }
  if (fields.string("hidden_act", "silu") != "silu") {
    fail(ErrorKind::bad_file, "{}: hidden_act is {}, expected silu", fields.where(), fields.string("hidden_act", ""));
  }
  double factor = fields.number("partial_rotary_factor", 0.25);
  text.rope_theta = fields.number("rope_theta", 1e7);
  // The nested object's name changed: rope_parameters in transformers 5, rope_scaling before.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    const Fields rope(fields.get(key), fields.where() + ": " + key);
    const std::string type = rope.string("rope_type", rope.string("type", "default"));
    if (type != "default" && type != "mrope") {
      fail(ErrorKind::bad_file, "{}: rope_type {} is not supported; expected default", rope.where(), type);
    }
    text.rope_theta = rope.number("rope_theta", text.rope_theta);
    factor = rope.number("partial_rotary_factor", factor);
    if (rope.has("mrope_section")) {
      const OrderedJson& section = rope.get("mrope_section");
      if (!section.is_array() || section.size() != 3 || !section[0].is_number_integer() ||
          !section[1].is_number_integer() || !section[2].is_number_integer()) {
        fail(ErrorKind::bad_file, "{}: mrope_section must be three whole numbers", rope.where());
      }
      for (std::size_t i = 0; i < 3; ++i) text.mrope_section[i] = section[i].get<int>();
    }
  }
  text.rotary_dim = static_cast<int>(text.head_dim * factor);
  read_layer_types(fields, text);
  if (moe) {
    text.num_experts = fields.positive("num_experts");
    text.num_experts_per_token = fields.positive("num_experts_per_tok");
    text.moe_intermediate_size = fields.positive("moe_intermediate_size");
    text.shared_expert_intermediate_size = fields.positive("shared_expert_intermediate_size");
  } else {
    text.intermediate_size = fields.positive("intermediate_size");
  }
}

void read_qwen_vision(const Fields& fields, VisionConfig& vision) {
  vision.present = true;
  vision.hidden_size = fields.positive("hidden_size");
  vision.intermediate_size = fields.positive("intermediate_size");
  vision.depth = fields.positive("depth");
  vision.num_heads = fields.positive("num_heads");
  vision.patch_size = fields.positive("patch_size");
  vision.temporal_patch_size = fields.integer("temporal_patch_size", 2);
  vision.spatial_merge_size = fields.integer("spatial_merge_size", 2);
  vision.num_position_embeddings = fields.positive("num_position_embeddings");
  vision.out_hidden_size = fields.positive("out_hidden_size");
  if (fields.has("deepstack_visual_indexes") && !fields.get("deepstack_visual_indexes").empty()) {
    fail(ErrorKind::bad_file, "{}: deepstack_visual_indexes is not empty; deepstack features are not supported",
         fields.where());
  }
  if (fields.has("rope_parameters")) {
    vision.rope_theta = Fields(fields.get("rope_parameters"), fields.where()).number("rope_theta", 10000.0);
  }
}

void read_minicpm_vision(const Fields& root, const Fields& fields, const TextConfig& text, VisionConfig& vision) {
  vision.present = true;
  vision.hidden_size = fields.positive("hidden_size");
  vision.intermediate_size = fields.positive("intermediate_size");
  vision.depth = fields.positive("num_hidden_layers");
  vision.num_heads = fields.positive("num_attention_heads");
  vision.patch_size = fields.positive("patch_size");
  const int side = fields.positive("image_size") / vision.patch_size;
  vision.num_position_embeddings = side * side;
  vision.layer_norm_eps = static_cast<float>(fields.number("layer_norm_eps", 1e-6));
  vision.out_hidden_size = text.hidden_size;
  vision.insert_layer_id = root.integer("insert_layer_id", 6);
  vision.merger_times = root.integer("merger_times", 1);
  const std::string mode = root.string("downsample_mode", "16x");
  if (mode != "16x" && mode != "4x") {
    fail(ErrorKind::bad_file, "{}: downsample_mode is {}, expected 16x or 4x", root.where(), mode);
  }
  vision.downsample_4x = mode == "4x";
  if (root.boolean("drop_vision_last_layer", false)) vision.depth -= 1;
}

}  // namespace

ModelConfig config_from_json(std::string_view json_text, const std::string& source) {
  const OrderedJson json = parse_json(json_text, source);
  const Fields root(json, source);
  const std::string type = root.string("model_type", "");
  ModelConfig config;
  if (type == "qwen3_5" || type == "qwen3_5_text") {
    config.family = Family::qwen3_5;
  } else if (type == "qwen3_5_moe" || type == "qwen3_5_moe_text") {
    config.family = Family::qwen3_5_moe;
  } else if (type == "minicpmv4_6") {
    config.family = Family::minicpmv4_6;
  } else {
    fail(ErrorKind::bad_file,
         "{}: model_type \"{}\" is not supported; supported are qwen3_5, qwen3_5_moe and minicpmv4_6", source, type);
  }
  const bool moe = config.family == Family::qwen3_5_moe;
  const bool nested = root.has("text_config");
  const Fields text = nested ? Fields(root.get("text_config"), source + ": text_config") : root;
  read_text(text, moe, config.text);
  // The vision-language classes take the tie from the outer object.
  if (nested) config.text.tie_word_embeddings = root.boolean("tie_word_embeddings", config.text.tie_word_embeddings);
  if (root.has("vision_config")) {
    const Fields vision(root.get("vision_config"), source + ": vision_config");
    if (config.family == Family::minicpmv4_6) {
      read_minicpm_vision(root, vision, config.text, config.vision);
    } else {
      read_qwen_vision(vision, config.vision);
    }
    config.image_token_id = root.integer("image_token_id", -1);
    config.video_token_id = root.integer("video_token_id", -1);
  }
  check_config(config, source);
  return config;
}

}  // namespace heirloom::model
