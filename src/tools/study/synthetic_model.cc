#include "tools/study/synthetic_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "base/check.h"
#include "base/half.h"

namespace heirloom::tools {
namespace {

constexpr std::size_t kPoolBytes = std::size_t{320} << 20;

model::TextConfig text_config(const SyntheticOptions& options) {
  model::TextConfig c;
  c.vocab_size = 248320;
  c.num_kv_heads = 2;
  c.head_dim = 256;
  c.rotary_dim = 64;
  c.linear_num_k_heads = 16;
  c.linear_head_k_dim = c.linear_head_v_dim = 128;
  c.context_length = 262144;
  if (options.size != SyntheticSize::mixture) {
    c.hidden_size = 1024;
    c.num_layers = 24;
    c.num_q_heads = 8;
    c.linear_num_v_heads = 16;
    c.intermediate_size = 3584;
    c.tie_word_embeddings = true;
  } else {
    c.hidden_size = 2048;
    c.num_layers = 40;
    c.num_q_heads = 16;
    c.linear_num_v_heads = 32;
    c.v_heads_tiled = true;
    c.num_experts = 128;
    c.num_experts_per_token = 8;
    c.moe_intermediate_size = c.shared_expert_intermediate_size = 512;
  }
  if (options.layers > 0) c.num_layers = options.layers;
  for (int i = 0; i < c.num_layers; ++i) {
    c.layer_types.push_back(i % 4 == 3 ? model::LayerType::full_attention : model::LayerType::linear_attention);
  }
  return c;
}

/// Any tensor that is asked for, cut from a pool of its type.
class SyntheticSource : public TensorSource {
 public:
  SyntheticSource(const model::ModelConfig& config, const SyntheticOptions& options)
      : text_(config.text), vision_(config.vision), options_(options) {}

  const TensorView* find(std::string_view name) const override {
    if (name.starts_with("v.") && name.find("attn_qkv") != std::string_view::npos) return nullptr;  // q, k and v apart
    TensorView& view = views_[std::string(name)];
    if (!view.name.empty()) return &view;
    view.name = name;
    if (name.starts_with("v.") || name.starts_with("mm.")) shape_of_vision(view);
    else shape_of_text(view);
    view.data = bytes_of(view.type, view.rows() * row_bytes(view.type, view.cols()));
    return &view;
  }
  const std::vector<std::string>& names() const override { return names_; }
  void release(const TensorView&) const noexcept override {}
  const std::filesystem::path& path() const override { return path_; }

 private:
  struct Pool {
    std::vector<std::vector<std::byte>> memory;  // the last one is cut from
    std::size_t next = 0;
  };

  std::span<const std::byte> bytes_of(DType type, std::size_t bytes) const {
    Pool& pool = pools_[type];
    if (pool.memory.empty() || bytes > pool.memory.back().size()) {
      const std::size_t block = dtype_info(type).block_bytes;
      pool.memory.push_back(synthetic_blocks(type, (std::max(bytes, kPoolBytes) + block - 1) / block * block));
      pool.next = 0;
    }
    if (pool.next + bytes > pool.memory.back().size()) pool.next = 0;
    const auto data = std::span<const std::byte>(pool.memory.back()).subspan(pool.next, bytes);
    pool.next += bytes;
    return data;
  }

  void shape_of_text(TensorView& view) const {
    const std::string& name = view.name;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const auto u = [](auto v) { return static_cast<std::uint64_t>(v); };
    const auto& c = text_;
    const std::uint64_t H = u(c.hidden_size), K = u(c.linear_num_k_heads * c.linear_head_k_dim),
                        V = u(c.linear_num_v_heads * c.linear_head_v_dim), C = 2 * K + V, E = u(c.num_experts),
                        Q = u(c.num_q_heads * c.head_dim), KV = u(c.num_kv_heads * c.head_dim), I = u(c.moe_intermediate_size),
                        F = u(c.num_experts ? c.shared_expert_intermediate_size : c.intermediate_size), nv = u(c.linear_num_v_heads);
    view.type = options_.linears;
    if (has("token_embd") || name == "output.weight") view.shape = {u(c.vocab_size), H}, view.type = options_.head;
    else if (has("ssm_norm")) view.shape = {u(c.linear_head_v_dim)}, view.type = DType::f32;
    else if (has("attn_q_norm") || has("attn_k_norm")) view.shape = {u(c.head_dim)}, view.type = DType::f32;
    else if (has("norm")) view.shape = {H}, view.type = DType::f32;
    else if (has("ssm_conv1d")) view.shape = {C, 4}, view.type = DType::f32;
    else if (has("ssm_dt") || has("ssm_a.") || name.ends_with("ssm_a")) view.shape = {nv}, view.type = DType::f32;
    else if (has("ssm_alpha") || has("ssm_beta")) view.shape = {nv, H}, view.type = DType::q8_0;
    else if (has("ssm_out")) view.shape = {H, V};
    else if (has("attn_qkv")) view.shape = {C, H};
    else if (has("attn_gate")) view.shape = {V, H};
    else if (has("attn_q.")) view.shape = {2 * Q, H};
    else if (has("attn_k.") || has("attn_v.")) view.shape = {KV, H};
    else if (has("attn_output")) view.shape = {H, Q};
    else if (has("gate_inp_shexp")) view.shape = {1, H}, view.type = DType::f32;
    else if (has("gate_inp")) view.shape = {E, H}, view.type = DType::f32;
    else if (has("down_exps")) view.shape = {E, H, I};
    else if (has("_exps")) view.shape = {E, I, H};
    else if (has("ffn_down")) view.shape = {H, F};
    else if (has("ffn_")) view.shape = {F, H};
    else fail(ErrorKind::internal, "synthetic model: no shape for {}", name);
  }

  void shape_of_vision(TensorView& view) const {
    const std::string& name = view.name;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const auto u = [](int v) { return static_cast<std::uint64_t>(v); };
    const std::uint64_t H = u(vision_.hidden_size), I = u(vision_.intermediate_size), S = 4 * H;  // S: a stacked 2x2 window
    std::uint64_t rows = H, cols = H;  // cols 0: a vector
    if (has("patch_embd")) cols = u(3 * vision_.patch_size * vision_.patch_size);
    else if (has("position_embd")) rows = u(vision_.num_position_embeddings);
    else if (has("ds_ffn_up")) rows = 4 * I, cols = S;
    else if (has("ds_ffn_down")) cols = 4 * I;
    else if (has("ds_ln") || has("input_norm")) rows = S, cols = 0;
    else if (has("ln")) cols = 0;
    else if (has("ffn_up")) rows = I;
    else if (has("ffn_down")) cols = I;
    else if (name.starts_with("mm.up")) rows = cols = S;
    else if (name.starts_with("mm.down")) rows = u(vision_.out_hidden_size), cols = S;
    if (name.ends_with(".bias")) cols = 0;
    view.type = cols == 0 || has("position_embd") ? DType::f32 : DType::f16;
    view.shape = cols == 0 ? std::vector<std::uint64_t>{rows} : std::vector<std::uint64_t>{rows, cols};
  }

  model::TextConfig text_;
  model::VisionConfig vision_;
  SyntheticOptions options_;
  mutable std::map<DType, Pool> pools_;
  mutable std::map<std::string, TensorView> views_;
  std::vector<std::string> names_;
  std::filesystem::path path_ = "synthetic";
};

}  // namespace

std::vector<std::byte> synthetic_blocks(DType type, std::size_t bytes) {
  // A piece of whole blocks of every type, repeated: what matters to a cache is that addresses differ.
  constexpr std::size_t kPieceBytes = 942480 * 20;
  std::vector<std::byte> all(bytes);
  const std::size_t piece = std::min(bytes, kPieceBytes);
  std::mt19937 engine(1);
  for (std::size_t i = 0; i + 4 <= piece; i += 4) {
    const auto bits = static_cast<std::uint32_t>(engine());
    const float value = static_cast<float>(bits % 2001) * 1e-5f - 1e-2f;
    if (type == DType::f32) {
      std::memcpy(all.data() + i, &value, 4);
    } else if (type == DType::f16 || type == DType::bf16) {
      const std::uint16_t one = type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value), half[2] = {one, one};
      std::memcpy(all.data() + i, half, 4);
    } else {
      std::memcpy(all.data() + i, &bits, 4);
    }
  }
  if (is_quantized(type)) {  // random codes under scales that keep the values near 0.03
    const std::uint16_t scale = f32_to_f16(type == DType::q8_0 ? 4e-4f : type == DType::q6_k ? 2e-5f : 4e-3f);
    const std::size_t block = dtype_info(type).block_bytes, at = type == DType::q6_k ? block - 2 : 0;
    for (std::size_t i = 0; i + block <= piece; i += block) {
      std::memcpy(all.data() + i + at, &scale, 2);
      if (type == DType::q4_k || type == DType::q5_k) std::memcpy(all.data() + i + 2, &scale, 2);
    }
  }
  for (std::size_t i = piece; i < bytes; i += piece) std::memcpy(all.data() + i, all.data(), std::min(piece, bytes - i));
  return all;
}

model::ModelFiles synthetic_model(const SyntheticOptions& options) {
  model::ModelFiles files;
  files.path = "synthetic";
  files.config.text = text_config(options);
  if (options.size == SyntheticSize::mixture) files.config.family = model::Family::qwen3_5_moe;
  if (options.size == SyntheticSize::vision) {
    files.config.family = model::Family::minicpmv4_6;
    model::VisionConfig& vision = files.config.vision;
    vision.present = true;
    vision.hidden_size = 1152;
    vision.intermediate_size = 4304;
    vision.depth = 27;
    vision.num_heads = 16;
    vision.patch_size = 14;
    vision.num_position_embeddings = 4900;
    vision.out_hidden_size = files.config.text.hidden_size;
    vision.insert_layer_id = 6;
  }
  files.name = options.size == SyntheticSize::mixture ? "35B-A3B, 128 experts" : options.size == SyntheticSize::vision ? "MiniCPM-V-4.6" : "0.8B";
  files.text = std::make_shared<SyntheticSource>(files.config, options);
  if (files.config.vision.present) files.vision = files.text;
  return files;
}

}  // namespace heirloom::tools
