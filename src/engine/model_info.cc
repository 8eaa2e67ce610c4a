#include "engine/model_info.h"

#include <map>

#include "engine/text_side.h"
#include "model/tensor_export.h"

namespace heirloom {
namespace {

std::uint64_t source_bytes(const model::ExportTensor& tensor) {
  return row_bytes(tensor.source_type, static_cast<std::uint64_t>(tensor.cols())) *
         static_cast<std::uint64_t>(tensor.rows());
}

}  // namespace

Json model_info(const model::ModelFiles& files) {
  const model::ModelConfig& config = files.config;
  const model::TextConfig& text = config.text;
  const model::TensorExporter exporter(files);
  std::uint64_t parameters = 0, vision_parameters = 0, bytes = 0, active = 0;
  std::map<std::string, std::uint64_t> types;
  for (const model::ExportTensor& tensor : exporter.tensors()) {
    const auto count = static_cast<std::uint64_t>(tensor.rows()) * static_cast<std::uint64_t>(tensor.cols());
    parameters += count;
    if (tensor.vision) vision_parameters += count;
    bytes += source_bytes(tensor);
    types[std::string(dtype_name(tensor.source_type))] += count;
    if (tensor.vision || tensor.role == model::TensorRole::embedding) continue;
    const bool routed = tensor.name.find("_exps.") != std::string::npos;
    active += routed ? count / static_cast<std::uint64_t>(text.num_experts) *
                           static_cast<std::uint64_t>(text.num_experts_per_token)
                     : count;
  }
  int gdn_layers = 0;
  for (const model::LayerType type : text.layer_types) gdn_layers += type == model::LayerType::linear_attention;
  const text::Tokenizer tokenizer = engine::open_tokenizer(files);

  Json info;
  info["name"] = files.name;
  info["path"] = files.path.string();
  info["format"] = files.gguf ? "gguf" : "safetensors";
  info["architecture"] = model::family_name(config.family);
  info["parameters"] = parameters;
  info["active_parameters"] = active;
  info["vision_parameters"] = vision_parameters;
  info["weight_bytes"] = bytes;
  info["parameters_by_type"] = types;
  info["context_length"] = text.context_length;
  info["vocab_size"] = text.vocab_size;
  info["tokenizer_tokens"] = tokenizer.vocab_size();
  info["layers"] = {{"total", text.num_layers},
                    {"gated_delta_net", gdn_layers},
                    {"full_attention", text.num_layers - gdn_layers}};
  info["hidden_size"] = text.hidden_size;
  info["attention"] = {{"query_heads", text.num_q_heads}, {"kv_heads", text.num_kv_heads}, {"head_dim", text.head_dim},
                       {"rotary_dim", text.rotary_dim}, {"rope_theta", text.rope_theta}};
  info["gated_delta_net"] = {{"key_heads", text.linear_num_k_heads}, {"value_heads", text.linear_num_v_heads},
                             {"key_head_dim", text.linear_head_k_dim}, {"value_head_dim", text.linear_head_v_dim}};
  if (text.num_experts > 0) {
    info["experts"] = {{"count", text.num_experts}, {"used_per_token", text.num_experts_per_token},
                       {"intermediate_size", text.moe_intermediate_size},
                       {"shared_intermediate_size", text.shared_expert_intermediate_size}};
  } else {
    info["intermediate_size"] = text.intermediate_size;
  }
  info["tied_embeddings"] = text.tie_word_embeddings;
  if (config.vision.present) {
    const model::VisionConfig& vision = config.vision;
    info["vision"] = {{"layers", vision.depth}, {"hidden_size", vision.hidden_size}, {"heads", vision.num_heads},
                      {"patch_size", vision.patch_size}};
    if (config.family == model::Family::minicpmv4_6) info["vision"]["downsample"] = vision.downsample_4x ? "4x" : "16x";
  } else {
    info["vision"] = nullptr;
  }
  info["chat_template"] = files.chat_template.empty() ? "none" : files.chat_template;
  return info;
}

}  // namespace heirloom
