// GGUF metadata (llama.cpp's converter: architectures qwen35, qwen35moe; clip.* keys of the vision part) -> ModelConfig.
#include <cmath>

#include "base/check.h"
#include "format/gguf.h"
#include "model/config.h"

namespace heirloom::model {
namespace {

std::string file_of(const GgufFile& file) { return file.path().string(); }

void read_layer_types(const GgufFile& file, const std::string& prefix, TextConfig& text) {
  if (const auto recurrent = file.metadata().find_bools(prefix + "attention.recurrent_layers")) {
    if (recurrent->size() < static_cast<std::size_t>(text.num_layers)) {
      fail(ErrorKind::bad_file, "{}: {}attention.recurrent_layers has {} entries, the model has {} layers", file_of(file),
           prefix, recurrent->size(), text.num_layers);
    }
    for (int i = 0; i < text.num_layers; ++i) {
      text.layer_types.push_back((*recurrent)[static_cast<std::size_t>(i)] ? LayerType::linear_attention
                                                                           : LayerType::full_attention);
    }
    return;
  }
  const int interval = file.metadata().find_count(prefix + "full_attention_interval").value_or(4);
  if (interval == 0) fail(ErrorKind::bad_file, "{}: {}full_attention_interval is 0", file_of(file), prefix);
  for (int i = 0; i < text.num_layers; ++i) {
    text.layer_types.push_back((i + 1) % interval == 0 ? LayerType::full_attention : LayerType::linear_attention);
  }
}

void read_text(const GgufFile& file, const std::string& arch, TextConfig& text) {
  const GgufMetadata& keys = file.metadata();
  const std::string prefix = arch + ".";
  const int blocks = keys.get_count(prefix + "block_count");
  const int draft_blocks = keys.find_count(prefix + "nextn_predict_layers").value_or(0);
  if (blocks <= draft_blocks || blocks > static_cast<int>(file.names().size())) {
    fail(ErrorKind::bad_file, "{}: {}block_count is {} ({} of them draft layers), the file holds {} tensors",
         file_of(file), prefix, blocks, draft_blocks, file.names().size());
  }
  text.num_layers = blocks - draft_blocks;
  text.hidden_size = keys.get_count(prefix + "embedding_length");
  text.context_length = keys.get_count(prefix + "context_length");
  text.num_q_heads = keys.get_count(prefix + "attention.head_count");
  text.num_kv_heads = keys.find_count(prefix + "attention.head_count_kv").value_or(text.num_q_heads);
  text.head_dim = keys.get_count(prefix + "attention.key_length");
  if (keys.find_count(prefix + "attention.value_length").value_or(text.head_dim) != text.head_dim) {
    fail(ErrorKind::bad_file, "{}: key_length {} and value_length {} differ; equal lengths are expected", file_of(file),
         text.head_dim, keys.get_count(prefix + "attention.value_length"));
  }
  text.rotary_dim = keys.get_count(prefix + "rope.dimension_count");
  text.rope_theta = keys.find_f32(prefix + "rope.freq_base").value_or(1e7f);
  text.rms_norm_eps = keys.find_f32(prefix + "attention.layer_norm_rms_epsilon").value_or(1e-6f);
  if (const auto sections = keys.find_i64s(prefix + "rope.dimension_sections")) {
    if (sections->size() < 3) {
      fail(ErrorKind::bad_file, "{}: {}rope.dimension_sections has {} numbers, expected 4", file_of(file), prefix,
           sections->size());
    }
    for (std::size_t i = 0; i < 3; ++i) text.mrope_section[i] = static_cast<int>((*sections)[i] & 0xffff);
  }
  text.linear_conv_kernel = keys.get_count(prefix + "ssm.conv_kernel");
  text.linear_head_k_dim = keys.get_count(prefix + "ssm.state_size");
  text.linear_num_k_heads = keys.get_count(prefix + "ssm.group_count");
  text.linear_num_v_heads = keys.get_count(prefix + "ssm.time_step_rank");
  const int inner = keys.get_count(prefix + "ssm.inner_size");
  if (text.linear_num_v_heads == 0 || inner % text.linear_num_v_heads != 0) {
    fail(ErrorKind::bad_file, "{}: {}ssm.inner_size {} is not a multiple of ssm.time_step_rank {}", file_of(file), prefix,
         inner, text.linear_num_v_heads);
  }
  text.linear_head_v_dim = inner / text.linear_num_v_heads;
  // Converters reorder the value heads only when there are more of them than key heads. Other layouts carry a tag.
  text.v_heads_tiled = text.linear_num_v_heads != text.linear_num_k_heads;
  if (const auto layout = keys.find_string(prefix + "ssm.value_head_layout")) {
    if (*layout != "tiled" && *layout != "grouped") {
      fail(ErrorKind::bad_file, "{}: {}ssm.value_head_layout is \"{}\", known are tiled and grouped", file_of(file), prefix,
           *layout);
    }
    text.v_heads_tiled = text.v_heads_tiled && *layout == "tiled";
  }
  read_layer_types(file, prefix, text);
  if (arch == "qwen35moe") {
    text.num_experts = keys.get_count(prefix + "expert_count");
    text.num_experts_per_token = keys.get_count(prefix + "expert_used_count");
    text.moe_intermediate_size = keys.get_count(prefix + "expert_feed_forward_length");
    text.shared_expert_intermediate_size =
        keys.find_count(prefix + "expert_shared_feed_forward_length").value_or(text.moe_intermediate_size);
  } else {
    text.intermediate_size = keys.get_count(prefix + "feed_forward_length");
  }
  const TensorView& embedding = file.require("token_embd.weight");
  text.vocab_size = static_cast<int>(embedding.rows());
  text.tie_word_embeddings = file.type_name("output.weight").empty();
}

void read_vision(const GgufFile& file, ModelConfig& config) {
  const GgufMetadata& keys = file.metadata();
  const std::string projector(keys.get_string("clip.projector_type"));
  VisionConfig& vision = config.vision;
  vision.present = true;
  if (projector == "minicpmv4_6") {
    if (config.family != Family::qwen3_5) {
      fail(ErrorKind::bad_file, "{}: a minicpmv4_6 vision part, but the language model is not dense qwen35", file_of(file));
    }
    config.family = Family::minicpmv4_6;
  } else if (projector != "qwen3vl_merger") {
    fail(ErrorKind::bad_file, "{}: clip.projector_type \"{}\" is not supported; expected qwen3vl_merger or minicpmv4_6",
         file_of(file), projector);
  }
  vision.hidden_size = keys.get_count("clip.vision.embedding_length");
  vision.intermediate_size = keys.get_count("clip.vision.feed_forward_length");
  vision.depth = keys.get_count("clip.vision.block_count");
  vision.num_heads = keys.get_count("clip.vision.attention.head_count");
  vision.patch_size = keys.get_count("clip.vision.patch_size");
  vision.out_hidden_size = config.text.hidden_size;
  vision.layer_norm_eps = keys.find_f32("clip.vision.attention.layer_norm_epsilon").value_or(1e-6f);
  vision.num_position_embeddings = static_cast<int>(file.require("v.position_embd.weight").rows());
  if (config.family == Family::minicpmv4_6) {
    const auto layers = keys.find_i64s("clip.vision.wa_layer_indexes").value_or(std::vector<std::int64_t>{});
    vision.insert_layer_id = layers.empty() ? -1 : static_cast<int>(layers.front());
    vision.downsample_4x = keys.find_count("clip.vision.projector.scale_factor").value_or(4) == 2;
    while (!file.type_name("mm." + std::to_string(vision.merger_times) + ".up.weight").empty()) ++vision.merger_times;
  } else {
    vision.temporal_patch_size = 2;
    vision.spatial_merge_size = keys.find_count("clip.vision.spatial_merge_size").value_or(2);
    if (const auto deepstack = keys.find_bools("clip.vision.is_deepstack_layers")) {
      for (const bool used : *deepstack) {
        if (used) fail(ErrorKind::bad_file, "{}: deepstack features are not supported", file_of(file));
      }
    }
  }
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& text, const GgufFile* vision) {
  const std::string arch(text.metadata().get_string("general.architecture"));
  ModelConfig config;
  if (arch == "qwen35") {
    config.family = Family::qwen3_5;
  } else if (arch == "qwen35moe") {
    config.family = Family::qwen3_5_moe;
  } else if (arch == "clip") {
    fail(ErrorKind::bad_file, "{}: this is the vision part (mmproj) of a model; give the language model's file and this one with --mmproj",
         file_of(text));
  } else {
    fail(ErrorKind::bad_file, "{}: architecture \"{}\" is not supported; supported are qwen35 and qwen35moe", file_of(text),
         arch);
  }
  read_text(text, arch, config.text);
  if (vision != nullptr) read_vision(*vision, config);
  check_config(config, file_of(text));
  return config;
}

}  // namespace heirloom::model
