#include "engine/model_info.h"

#include <algorithm>
#include <map>

namespace heirloom {
namespace {

struct TypeCount {
  std::uint64_t tensors = 0, parameters = 0, bytes = 0;
};

void count_tensors(const TensorSource& source, std::map<std::string, TypeCount>& types) {
  for (const std::string& name : source.names()) {
    const TensorView* tensor = source.find(name);
    if (tensor == nullptr) continue;

    TypeCount& count = types[std::string(dtype_name(tensor->type))];
    ++count.tensors;
    count.parameters += tensor->elements();
    count.bytes += tensor->data.size();
  }
}

}  // namespace

Json model_info(const model::ModelFiles& files) {
  const model::TextConfig& text = files.config.text;
  std::map<std::string, TypeCount> types;
  count_tensors(*files.text, types);
  if (files.vision && files.vision != files.text) count_tensors(*files.vision, types);
  TypeCount total;
  Json type_list = Json::object();
  for (const auto& [name, count] : types) {
    type_list[name] = {{"tensors", count.tensors}, {"parameters", count.parameters}, {"bytes", count.bytes}};
    total.parameters += count.parameters;
    total.bytes += count.bytes;
  }
  const auto attention = std::ranges::count(text.layer_types, model::LayerType::full_attention);
  Json info;
  info["name"] = files.name;
  info["path"] = files.path.string();
  info["architecture"] = std::string(model::family_name(files.config.family));
  info["parameters"] = total.parameters;
  info["bytes"] = total.bytes;
  info["types"] = type_list;
  info["context_tokens"] = text.context_length;
  info["vocab_size"] = text.vocab_size;
  info["hidden_size"] = text.hidden_size;
  info["layers"] = {{"total", text.num_layers}, {"full_attention", attention}, {"linear_attention", text.num_layers - attention}};
  info["attention"] = {{"num_q_heads", text.num_q_heads}, {"num_kv_heads", text.num_kv_heads}, {"head_dim", text.head_dim}};
  if (text.num_experts > 0) {
    info["experts"] = {{"total", text.num_experts}, {"per_token", text.num_experts_per_token}};
  }
  info["vision"] = files.config.vision.present && files.vision != nullptr;
  info["chat_template"] = files.chat_template.empty() ? Json(nullptr) : Json(files.chat_template);
  return info;
}

}  // namespace heirloom
