#include "tools/gguf_keys.h"

#include <cmath>

#include "base/check.h"
#include "base/json.h"
#include "engine/text_side.h"

namespace heirloom::tools {
namespace {

using model::Family;
using model::LayerType;

void write_text_config(const model::ModelConfig& config, GgufWriter& writer) {
  const model::TextConfig& text = config.text;
  const bool moe = config.family == Family::qwen3_5_moe;
  const std::string prefix = moe ? "qwen35moe." : "qwen35.";
  const auto count = [&](const char* key, int value) { writer.set(prefix + key, static_cast<std::uint32_t>(value)); };
  count("block_count", text.num_layers);
  count("context_length", text.context_length);
  count("embedding_length", text.hidden_size);
  if (!moe) count("feed_forward_length", text.intermediate_size);
  count("attention.head_count", text.num_q_heads);
  count("attention.head_count_kv", text.num_kv_heads);
  const std::int32_t sections[] = {text.mrope_section[0], text.mrope_section[1], text.mrope_section[2], 0};
  writer.set_array(prefix + "rope.dimension_sections", std::span<const std::int32_t>(sections));
  writer.set(prefix + "rope.freq_base", static_cast<float>(text.rope_theta));
  writer.set(prefix + "attention.layer_norm_rms_epsilon", text.rms_norm_eps);
  count("attention.key_length", text.head_dim);
  count("attention.value_length", text.head_dim);
  count("rope.dimension_count", text.rotary_dim);
  if (moe) {
    count("expert_count", text.num_experts);
    count("expert_used_count", text.num_experts_per_token);
    count("expert_feed_forward_length", text.moe_intermediate_size);
    count("expert_shared_feed_forward_length", text.shared_expert_intermediate_size);
  }
  count("ssm.conv_kernel", text.linear_conv_kernel);
  count("ssm.state_size", text.linear_head_k_dim);
  count("ssm.group_count", text.linear_num_k_heads);
  count("ssm.time_step_rank", text.linear_num_v_heads);
  count("ssm.inner_size", text.linear_num_v_heads * text.linear_head_v_dim);
  std::vector<bool> recurrent;
  int interval = 0;
  for (std::size_t i = 0; i < text.layer_types.size(); ++i) {
    recurrent.push_back(text.layer_types[i] == LayerType::linear_attention);
    if (!recurrent.back() && interval == 0) interval = static_cast<int>(i) + 1;
  }
  writer.set_array(prefix + "attention.recurrent_layers", recurrent);
  if (interval > 0) count("full_attention_interval", interval);
}

void write_tokenizer(const model::ModelFiles& files, GgufWriter& writer) {
  const text::Tokenizer tokenizer = engine::open_tokenizer(files);
  text::GgufVocabulary vocabulary = tokenizer.to_gguf();
  // The embedding may have more rows than the tokenizer has ids; llama.cpp takes the vocabulary's size from this list.
  while (vocabulary.tokens.size() < static_cast<std::size_t>(files.config.text.vocab_size)) {
    vocabulary.tokens.push_back("[PAD" + std::to_string(vocabulary.tokens.size()) + "]");
    vocabulary.token_types.push_back(5);  // unused
  }
  writer.set("tokenizer.ggml.model", std::string_view("gpt2"));
  writer.set("tokenizer.ggml.pre", std::string_view(vocabulary.pre));
  writer.set_array("tokenizer.ggml.tokens", std::span<const std::string>(vocabulary.tokens));
  writer.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(vocabulary.token_types));
  writer.set_array("tokenizer.ggml.merges", std::span<const std::string>(vocabulary.merges));
  const auto id = [&](const char* key, std::optional<std::int32_t> value) {
    if (value) writer.set(key, static_cast<std::uint32_t>(*value));
  };
  id("tokenizer.ggml.bos_token_id", vocabulary.bos_id);
  id("tokenizer.ggml.eos_token_id", vocabulary.eos_id);
  id("tokenizer.ggml.padding_token_id", vocabulary.pad_id);
  writer.set("tokenizer.ggml.add_bos_token", false);
  if (!files.chat_template.empty()) writer.set("tokenizer.chat_template", std::string_view(files.chat_template));
}

void write_sampling(const std::string& generation_config, const std::string& source, GgufWriter& writer) {
  if (generation_config.empty()) return;
  writer.set("heirloom.generation_config", std::string_view(generation_config));
  const OrderedJson json = parse_json(generation_config, source);
  // The keys that llama.cpp reads.
  if (!json.is_object() || !json.value("do_sample", false)) return;
  if (json.contains("temperature") && json["temperature"].is_number()) {
    writer.set("general.sampling.temp", json["temperature"].get<float>());
  }
  if (json.contains("top_k") && json["top_k"].is_number_integer()) {
    writer.set("general.sampling.top_k", json["top_k"].get<std::int32_t>());
  }
  if (json.contains("top_p") && json["top_p"].is_number()) {
    writer.set("general.sampling.top_p", json["top_p"].get<float>());
  }
}

}  // namespace

std::uint32_t gguf_file_type(DType type) {
  switch (type) {
    case DType::f32: return 0;
    case DType::f16: return 1;
    case DType::q4_0: return 2;
    case DType::q4_1: return 3;
    case DType::q8_0: return 7;
    case DType::q5_0: return 8;
    case DType::q5_1: return 9;
    case DType::q4_k: return 14;
    case DType::q5_k: return 16;
    case DType::q6_k: return 18;
    case DType::bf16: return 32;
    case DType::mxfp4: return 38;
    default: return 1024;  // "guessed"
  }
}

void write_text_keys(const model::ModelFiles& files, std::uint32_t file_type, GgufWriter& writer) {
  const bool moe = files.config.family == Family::qwen3_5_moe;
  if (files.gguf) {
    for (const GgufEntry& entry : files.gguf->metadata().entries()) {
      if (!entry.key.starts_with("clip.")) writer.copy(entry);
    }
    const std::string prefix = moe ? "qwen35moe." : "qwen35.";
    // Draft layers (multi-token prediction) are not carried over.
    writer.set(prefix + "block_count", static_cast<std::uint32_t>(files.config.text.num_layers));
    if (writer.has(prefix + "nextn_predict_layers")) writer.erase(prefix + "nextn_predict_layers");
    if (writer.has(prefix + "attention.recurrent_layers")) {
      std::vector<bool> recurrent;
      for (const LayerType type : files.config.text.layer_types) recurrent.push_back(type == LayerType::linear_attention);
      writer.set_array(prefix + "attention.recurrent_layers", recurrent);
    }
    if (moe) writer.set(prefix + "expert_count", static_cast<std::uint32_t>(files.config.text.num_experts));
  } else {
    writer.set("general.architecture", std::string_view(moe ? "qwen35moe" : "qwen35"));
    writer.set("general.type", std::string_view("model"));
    writer.set("general.name", std::string_view(files.name));
    write_text_config(files.config, writer);
    write_tokenizer(files, writer);
    write_sampling(files.generation_config_json, files.path.string(), writer);
  }
  writer.set("general.file_type", file_type);
  writer.set("general.quantization_version", std::uint32_t{2});
}

void write_vision_keys(const model::ModelFiles& files, bool own_file, GgufWriter& writer) {
  if (!files.config.vision.present) return;
  if (own_file) {
    writer.set("general.architecture", std::string_view("clip"));
    writer.set("general.type", std::string_view("mmproj"));
    writer.set("general.name", std::string_view(files.name));
    writer.set("general.file_type", gguf_file_type(DType::f16));
    writer.set("general.quantization_version", std::uint32_t{2});
  }
  if (files.vision_gguf) {
    for (const GgufEntry& entry : files.vision_gguf->metadata().entries()) {
      if (entry.key.starts_with("clip.") || entry.key.starts_with("heirloom.")) writer.copy(entry);
    }
    return;
  }
  const model::VisionConfig& vision = files.config.vision;
  const bool minicpm = files.config.family == Family::minicpmv4_6;
  const auto count = [&](const char* key, int value) { writer.set(key, static_cast<std::uint32_t>(value)); };
  const OrderedJson processor = parse_json(files.preprocessor_json.empty() ? "{}" : files.preprocessor_json, files.path.string());
  const int side = static_cast<int>(std::lround(std::sqrt(vision.num_position_embeddings)));
  writer.set("clip.has_vision_encoder", true);
  writer.set("clip.projector_type", std::string_view(minicpm ? "minicpmv4_6" : "qwen3vl_merger"));
  count("clip.vision.projection_dim", vision.out_hidden_size);
  count("clip.vision.image_size", minicpm ? processor.value("scale_resolution", 448) : side * vision.patch_size);
  count("clip.vision.patch_size", vision.patch_size);
  count("clip.vision.embedding_length", vision.hidden_size);
  count("clip.vision.feed_forward_length", vision.intermediate_size);
  count("clip.vision.block_count", vision.depth);
  count("clip.vision.attention.head_count", vision.num_heads);
  writer.set("clip.vision.attention.layer_norm_epsilon", vision.layer_norm_eps);
  for (const char* key : {"image_mean", "image_std"}) {
    const std::vector<float> values = processor.value(key, std::vector<float>{0.5f, 0.5f, 0.5f});
    writer.set_array(std::string("clip.vision.") + key, std::span<const float>(values));
  }
  writer.set("clip.use_gelu", true);
  if (minicpm) {
    count("clip.vision.projector.scale_factor", vision.downsample_4x ? 2 : 4);
    const std::int32_t layers[] = {vision.insert_layer_id};
    writer.set_array("clip.vision.wa_layer_indexes", std::span<const std::int32_t>(layers));
  } else {
    count("clip.vision.spatial_merge_size", vision.spatial_merge_size);
    writer.set_array("clip.vision.is_deepstack_layers", std::vector<bool>(static_cast<std::size_t>(vision.depth), false));
  }
  writer.set("heirloom.preprocessor_config", std::string_view(files.preprocessor_json));
}

}  // namespace heirloom::tools
