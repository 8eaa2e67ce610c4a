// Fills a HybridDecoder with a model's weights: which tensor goes where, and its shape.
#include <cmath>

#include "model/hybrid_decoder.h"
#include "model/weight_reader.h"

namespace heirloom::model {

HybridDecoder::HybridDecoder(ops::Backend& backend, const TextConfig& config)
    : backend_(backend), config_(config), scratch_(backend) {
  // rope_theta^(i / rotary_dim) in float32, as torch computes it.
  for (int i = 0; i < config.rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config.rotary_dim);
    inverse_frequencies_.push_back(1.0f / std::pow(static_cast<float>(config.rope_theta), exponent));
  }
}

HybridDecoder::HybridDecoder(ops::Backend& backend, const TextConfig& config, const WeightReader& weights,
                             const LoadProgress& progress)
    : HybridDecoder(backend, config) {
  const auto matrix = [&](const std::string& name) {
    return weights.load(backend, weights.matrix(name, config.vocab_size, config.hidden_size));
  };
  embedding_ = matrix("token_embd.weight");
  if (!config.tie_word_embeddings) head_ = matrix("output.weight");
  final_norm_ = weights.load_values(backend, "output_norm.weight", config.hidden_size);
  int gdn_layers = 0, attention_layers = 0;
  for (int i = 0; i < config.num_layers; ++i) {
    Layer& layer = layers_.emplace_back(bind_layer(weights, i));
    layer.state_index = layer.type == LayerType::linear_attention ? gdn_layers++ : attention_layers++;
    if (progress) progress(static_cast<double>(i + 1) / config.num_layers);
  }
}

void HybridDecoder::load_layer(const WeightReader& weights, int index) {
  layers_.clear();  // before the next one is bound: there may be no room for two
  layers_.push_back(bind_layer(weights, index));
  held_layer_ = index;
}

HybridDecoder::Layer HybridDecoder::bind_layer(const WeightReader& weights, int index) const {
  const TextConfig& config = config_;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t key_dim = static_cast<std::int64_t>(config.linear_num_k_heads) * config.linear_head_k_dim;
  const std::int64_t value_dim = static_cast<std::int64_t>(config.linear_num_v_heads) * config.linear_head_v_dim;
  const std::int64_t q_dim = static_cast<std::int64_t>(config.num_q_heads) * config.head_dim;
  const std::int64_t kv_dim = static_cast<std::int64_t>(config.num_kv_heads) * config.head_dim;

  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    return weights.load(backend_, weights.matrix(name, rows, cols));
  };
  const auto values = [&](const std::string& name, std::int64_t count) {
    return weights.load_values(backend_, name, count);
  };
  const std::string name = "blk." + std::to_string(index) + ".";
  Layer layer;
  layer.type = config.layer_types[static_cast<std::size_t>(index)];
  layer.input_norm = values(name + "attn_norm.weight", hidden);
  layer.post_attention_norm = values(name + "post_attention_norm.weight", hidden);
  if (layer.type == LayerType::linear_attention) {
    layer.gdn.qkv = matrix(name + "attn_qkv.weight", 2 * key_dim + value_dim, hidden);
    layer.gdn.z = matrix(name + "attn_gate.weight", value_dim, hidden);
    layer.gdn.a = matrix(name + "ssm_alpha.weight", config.linear_num_v_heads, hidden);
    layer.gdn.b = matrix(name + "ssm_beta.weight", config.linear_num_v_heads, hidden);
    layer.gdn.out = matrix(name + "ssm_out.weight", hidden, value_dim);
    layer.gdn.conv = values(name + "ssm_conv1d.weight", (2 * key_dim + value_dim) * config.linear_conv_kernel);
    layer.gdn.dt_bias = values(name + "ssm_dt.bias", config.linear_num_v_heads);
    layer.gdn.neg_exp_a = values(name + "ssm_a", config.linear_num_v_heads);
    layer.gdn.norm = values(name + "ssm_norm.weight", config.linear_head_v_dim);
  } else {
    layer.attention.q_gate = matrix(name + "attn_q.weight", 2 * q_dim, hidden);
    layer.attention.k = matrix(name + "attn_k.weight", kv_dim, hidden);
    layer.attention.v = matrix(name + "attn_v.weight", kv_dim, hidden);
    layer.attention.out = matrix(name + "attn_output.weight", hidden, q_dim);
    layer.attention.q_norm = values(name + "attn_q_norm.weight", config.head_dim);
    layer.attention.k_norm = values(name + "attn_k_norm.weight", config.head_dim);
  }
  if (config.num_experts == 0) {
    layer.ffn.gate = matrix(name + "ffn_gate.weight", config.intermediate_size, hidden);
    layer.ffn.up = matrix(name + "ffn_up.weight", config.intermediate_size, hidden);
    layer.ffn.down = matrix(name + "ffn_down.weight", hidden, config.intermediate_size);
  } else {
    const std::int64_t inner = config.moe_intermediate_size, shared = config.shared_expert_intermediate_size;
    layer.moe.router = matrix(name + "ffn_gate_inp.weight", config.num_experts, hidden);
    layer.moe.gate =
        weights.load(backend_, weights.experts(name + "ffn_gate_exps.weight", config.num_experts, inner, hidden));
    layer.moe.up =
        weights.load(backend_, weights.experts(name + "ffn_up_exps.weight", config.num_experts, inner, hidden));
    layer.moe.down =
        weights.load(backend_, weights.experts(name + "ffn_down_exps.weight", config.num_experts, hidden, inner));
    layer.moe.shared_router = matrix(name + "ffn_gate_inp_shexp.weight", 1, hidden);
    layer.moe.shared_gate = matrix(name + "ffn_gate_shexp.weight", shared, hidden);
    layer.moe.shared_up = matrix(name + "ffn_up_shexp.weight", shared, hidden);
    layer.moe.shared_down = matrix(name + "ffn_down_shexp.weight", hidden, shared);
  }
  return layer;
}

std::uint64_t HybridDecoder::weight_bytes() const {
  std::uint64_t total = embedding_->bytes + (head_ ? head_->bytes : 0);
  for (const Layer& layer : layers_) {
    for (const WeightPtr* weight : layer_weights(layer)) total += *weight ? (*weight)->bytes : 0;
  }
  return total;
}

// One decoded token uses every matrix once, but only top-k of the experts and one row of an untied embedding.
template <typename Measure>
std::uint64_t HybridDecoder::active_total(bool with_head, const Measure& measure) const {
  std::uint64_t total = with_head ? measure(head_ ? *head_ : *embedding_) : 0;
  for (const Layer& layer : layers_) {
    for (const WeightPtr* weight : layer_weights(layer)) {
      if (!*weight) continue;
      const auto experts = static_cast<std::uint64_t>((*weight)->experts);
      const std::uint64_t used = experts > 1 ? static_cast<std::uint64_t>(config_.num_experts_per_token) : 1;
      total += measure(**weight) / experts * used;
    }
  }
  return total;
}

std::uint64_t HybridDecoder::active_weight_bytes() const {
  return active_total(true, [](const ops::Weight& weight) { return weight.bytes; });
}

std::uint64_t HybridDecoder::active_parameters(bool with_head) const {
  return active_total(with_head, [](const ops::Weight& weight) {
    return static_cast<std::uint64_t>(weight.experts * weight.rows * weight.cols);
  });
}

std::vector<const HybridDecoder::WeightPtr*> HybridDecoder::layer_weights(const Layer& layer) {
  return {&layer.gdn.qkv,        &layer.gdn.z,         &layer.gdn.a,         &layer.gdn.b,
          &layer.gdn.out,        &layer.attention.q_gate, &layer.attention.k, &layer.attention.v,
          &layer.attention.out,  &layer.ffn.gate,      &layer.ffn.up,        &layer.ffn.down,
          &layer.moe.router,     &layer.moe.gate,      &layer.moe.up,        &layer.moe.down,
          &layer.moe.shared_gate, &layer.moe.shared_up, &layer.moe.shared_down, &layer.moe.shared_router};
}

}  // namespace heirloom::model
