#include "model/hybrid_decoder.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace heirloom::model {
namespace {

constexpr std::int32_t kRopeTable = 65536;  // positions whose sines are kept: 16 MiB with 32 frequencies

std::string layer_name(std::size_t index) { return "lm.layer" + std::to_string(index); }

/// Abandons the backend's step when an error ends it.
class BackendStep {
 public:
  explicit BackendStep(ops::Backend& backend) : backend_(backend) {}
  BackendStep(const BackendStep&) = delete;
  BackendStep& operator=(const BackendStep&) = delete;
  ~BackendStep() {
    if (open_) backend_.abandon_step();
  }
  bool begin(const ops::StepPlan& plan, std::uint64_t key) {
    open_ = true;
    return backend_.begin_step(plan, key);
  }
  void end() {
    backend_.end_step();
    open_ = false;
  }

 private:
  ops::Backend& backend_;
  bool open_ = false;
};

}  // namespace

ops::StateShape HybridDecoder::state_shape(DType kv_type) const {
  ops::StateShape shape;
  for (const LayerType type : config_.layer_types) {
    (type == LayerType::linear_attention ? shape.num_gdn_layers : shape.num_attention_layers) += 1;
  }
  shape.conv_kernel = config_.linear_conv_kernel;
  shape.num_v_heads = config_.linear_num_v_heads;
  shape.head_k_dim = config_.linear_head_k_dim;
  shape.head_v_dim = config_.linear_head_v_dim;
  shape.conv_channels =
      2 * config_.linear_num_k_heads * config_.linear_head_k_dim + config_.linear_num_v_heads * config_.linear_head_v_dim;
  shape.num_kv_heads = config_.num_kv_heads;
  shape.head_dim = config_.head_dim;
  shape.kv_type = kv_type;
  return shape;
}

// M-RoPE, interleaved: frequency i turns with the height position if i % 3 == 1 and i < 3 * section[1], with the width
// position if i % 3 == 2 and i < 3 * section[2], else with the temporal one (transformers: Qwen3_5TextRotaryEmbedding).
void HybridDecoder::make_rope(const StepInput& input) {
  const std::size_t rows = static_cast<std::size_t>(input.plan.num_rows);
  const std::size_t half = inverse_frequencies_.size();
  rope_host_.resize(2 * rows * half);
  const auto turn = [&](std::int32_t position, std::size_t i, float& cosine, float& sine) {
    const float angle = static_cast<float>(position) * inverse_frequencies_[i];
    cosine = std::cos(angle);
    sine = std::sin(angle);
  };
  // Sines of 4,096 rows took the host 4 ms, a tenth of a GPU's prefill: each position's are computed once.
  std::int32_t last = -1;
  for (const std::int32_t position : input.positions) last = std::max(last, position);
  last = std::min(last, kRopeTable - 1);
  if (last >= static_cast<std::int32_t>(rope_known_.size())) {
    rope_known_.resize(static_cast<std::size_t>(last) + 1);
    rope_table_.resize(rope_known_.size() * 2 * half);
  }
  for (const std::int32_t position : input.positions) {
    if (position < 0 || position > last || rope_known_[static_cast<std::size_t>(position)]) continue;
    rope_known_[static_cast<std::size_t>(position)] = 1;
    float* entry = rope_table_.data() + static_cast<std::size_t>(position) * 2 * half;
    for (std::size_t i = 0; i < half; ++i) turn(position, i, entry[i], entry[half + i]);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      std::size_t axis = 0;
      if (i % 3 == 1 && i < 3 * static_cast<std::size_t>(config_.mrope_section[1])) axis = 1;
      if (i % 3 == 2 && i < 3 * static_cast<std::size_t>(config_.mrope_section[2])) axis = 2;
      const std::int32_t position = input.positions[axis * rows + row];
      float &cosine = rope_host_[row * half + i], &sine = rope_host_[(rows + row) * half + i];
      if (position >= 0 && position <= last) {
        const float* entry = rope_table_.data() + static_cast<std::size_t>(position) * 2 * half;
        cosine = entry[i];
        sine = entry[half + i];
      } else {
        turn(position, i, cosine, sine);
      }
    }
  }
}

/// Token ids, rows of logits, sines and cosines, in one copy.
HybridDecoder::StepIds HybridDecoder::upload_step(const StepInput& input) {
  make_rope(input);
  Scratch::Batch batch(scratch_);
  const std::size_t half = rope_host_.size() / 2;
  const std::size_t ids = batch.add(std::span<const std::int32_t>(input.token_ids));
  const std::size_t rows = batch.add(std::span<const std::int32_t>(input.logits_rows));
  const std::size_t cosines = batch.add(std::span<const float>(rope_host_).first(half));
  const std::size_t sines = batch.add(std::span<const float>(rope_host_).subspan(half));
  std::byte* device = batch.send();
  rope_cos_ = reinterpret_cast<float*>(device + cosines);
  rope_sin_ = reinterpret_cast<float*>(device + sines);
  return {reinterpret_cast<std::int32_t*>(device + ids), reinterpret_cast<std::int32_t*>(device + rows)};
}

// The dump repeats the two equal halves.
void HybridDecoder::emit_rope(std::int64_t rows, TapEmitter& emit) const {
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  for (const bool sine : {false, true}) {
    std::vector<float> both;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = rope_host_.data() + ((sine ? rows : 0) + row) * half;
      for (int copy = 0; copy < 2; ++copy) both.insert(both.end(), from, from + half);
    }
    emit.host_floats(sine ? "lm.rope_sin" : "lm.rope_cos", both, {rows, 2 * half});
  }
}

StepOutput HybridDecoder::forward(const StepInput& input, Taps* taps) {
  const std::int64_t rows = input.plan.num_rows;
  HEIRLOOM_CHECK(static_cast<std::int64_t>(input.token_ids.size()) == rows);
  HEIRLOOM_CHECK(static_cast<std::int64_t>(input.positions.size()) == 3 * rows);
  TapEmitter emit(backend_, taps);

  scratch_.reset();
  const auto [ids, logits_rows] = upload_step(input);
  if (emit.wants("lm.rope_cos")) emit_rope(rows, emit);
  const ops::Matrix hidden = scratch_.matrix(rows, config_.hidden_size);   // residual stream
  const ops::Matrix normed = scratch_.matrix(rows, config_.hidden_size);   // input of the next mixer or FFN
  const ops::Matrix delta = scratch_.matrix(rows, config_.hidden_size);    // output of it
  const auto num_logits = static_cast<std::int64_t>(input.logits_rows.size());
  const ops::Matrix last = scratch_.matrix(num_logits, config_.hidden_size);
  StepOutput output;
  output.logits = scratch_.matrix(num_logits, config_.vocab_size);
  if (input.want_hidden) output.hidden = normed;

  // One token per sequence with nothing unusual is the step that repeats: a backend may record and replay it.
  const bool repeats = taps == nullptr && input.features.empty() && !input.want_hidden && num_logits == rows &&
                       input.plan.sequences.size() == static_cast<std::size_t>(rows);
  BackendStep step(backend_);
  const bool replayed = step.begin(input.plan, repeats ? static_cast<std::uint64_t>(rows) : 0);
  if (!replayed) {
    backend_.embed(*embedding_, ids, hidden);
    for (const FeatureRows& part : input.features) {
      backend_.copy(hidden.data + static_cast<std::int64_t>(part.first_row) * hidden.cols, part.features,
                    static_cast<std::size_t>(part.count) * static_cast<std::size_t>(hidden.cols) * sizeof(float));
    }
    emit.matrix("lm.inputs_embeds", hidden);

    backend_.rms_norm(hidden, layers_.front().input_norm.f32(), config_.rms_norm_eps, normed);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      const std::string name = emit ? layer_name(i) : std::string();
      layer_step(layer, name, hidden, normed, delta, emit);
      const float* next_norm = i + 1 < layers_.size() ? layers_[i + 1].input_norm.f32() : final_norm_.f32();
      backend_.add_rms_norm(hidden, delta, next_norm, config_.rms_norm_eps, normed);
      emit.matrix(name + ".out", hidden);
    }
    emit.matrix("lm.final_norm", normed);
    if (num_logits > 0) {
      backend_.gather_rows(normed, logits_rows, last);
      const ops::LinearOut head{head_ ? head_.get() : embedding_.get(), output.logits.data};
      backend_.linear(last, {&head, 1});
    }
  }
  step.end();
  return output;
}

ops::StateShape HybridDecoder::layer_state_shape(DType kv_type) const {
  ops::StateShape shape = state_shape(kv_type);
  const bool gdn = layers_.front().type == LayerType::linear_attention;
  shape.num_gdn_layers = gdn ? 1 : 0;
  shape.num_attention_layers = gdn ? 0 : 1;
  return shape;
}

void HybridDecoder::run_layer(const StepInput& input, ops::Matrix hidden, Taps* taps) {
  HEIRLOOM_CHECK(held_layer_ >= 0 && hidden.rows == input.plan.num_rows);
  const Layer& layer = layers_.front();
  TapEmitter emit(backend_, taps);
  scratch_.reset();
  upload_step(input);
  const ops::Matrix normed = scratch_.matrix(hidden.rows, hidden.cols);
  const ops::Matrix delta = scratch_.matrix(hidden.rows, hidden.cols);
  BackendStep step(backend_);
  step.begin(input.plan, 0);
  backend_.rms_norm(hidden, layer.input_norm.f32(), config_.rms_norm_eps, normed);
  layer_step(layer, layer_name(static_cast<std::size_t>(held_layer_)), hidden, normed, delta, emit);
  backend_.add(hidden, delta);
  step.end();
}

/// A layer without the norm in front of it and the addition behind it, which the next layer's norm is fused with.
void HybridDecoder::layer_step(const Layer& layer, const std::string& name, ops::Matrix hidden, ops::Matrix normed,
                               ops::Matrix delta, TapEmitter& emit) {
  if (layer.type == LayerType::linear_attention) {
    gdn_layer(layer, name, normed, delta, emit);
  } else {
    attention_layer(layer, name, normed, delta, emit);
  }
  backend_.add_rms_norm(hidden, delta, layer.post_attention_norm.f32(), config_.rms_norm_eps, normed);
  ffn(layer, name, normed, delta, emit);
}

void HybridDecoder::gdn_layer(const Layer& layer, const std::string& name, ops::Matrix in, ops::Matrix out,
                              TapEmitter& emit) {
  const Scratch::Frame frame(scratch_);
  const GdnLayer& gdn = layer.gdn;
  const std::int64_t rows = in.rows;
  const std::int64_t nk = config_.linear_num_k_heads, nv = config_.linear_num_v_heads;
  const std::int64_t dk = config_.linear_head_k_dim, dv = config_.linear_head_v_dim;
  const ops::Matrix qkv = scratch_.matrix(rows, 2 * nk * dk + nv * dv);
  const ops::Matrix z = scratch_.matrix(rows, nv * dv);
  const auto [a, b] = scratch_.matrices<2>(rows, nv);
  const ops::LinearOut projections[] = {
      {gdn.qkv.get(), qkv.data}, {gdn.z.get(), z.data}, {gdn.a.get(), a.data}, {gdn.b.get(), b.data}};
  backend_.linear(in, projections);

  const ops::GdnWeights weights{gdn.conv.f32(), gdn.dt_bias.f32(), gdn.neg_exp_a.f32(), gdn.norm.f32(),
                                config_.linear_num_k_heads, config_.linear_num_v_heads, config_.linear_head_k_dim,
                                config_.linear_head_v_dim, config_.v_heads_tiled, config_.rms_norm_eps};
  const std::string prefix = name + ".gdn.";
  ops::GdnTaps taps;
  const bool tapped = emit.wants(prefix + "core_out") || emit.wants(prefix + "conv_out") || emit.wants(prefix + "g");
  if (tapped) {
    taps.conv_out = scratch_.floats(rows * qkv.cols);
    taps.q_l2norm = scratch_.floats(rows * nk * dk);
    taps.k_l2norm = scratch_.floats(rows * nk * dk);
    taps.g = scratch_.floats(rows * nv);
    taps.beta = scratch_.floats(rows * nv);
    taps.core_out = scratch_.floats(rows * nv * dv);
    emit.matrix(prefix + "in", in);
    emit.value_heads(prefix + "in_proj_qkv", qkv.data, {rows, qkv.cols}, config_, qkv.cols, dv);
    emit.value_heads(prefix + "in_proj_z", z.data, {rows, z.cols}, config_, z.cols, dv);
    emit.value_heads(prefix + "in_proj_a", a.data, {rows, nv}, config_, nv, 1);
    emit.value_heads(prefix + "in_proj_b", b.data, {rows, nv}, config_, nv, 1);
  }
  const ops::Matrix gated = scratch_.matrix(rows, nv * dv);
  backend_.gdn_mixer(layer.state_index, weights, qkv, z, a, b, gated, tapped ? &taps : nullptr);
  const ops::LinearOut projection{gdn.out.get(), out.data};
  backend_.linear(gated, {&projection, 1});
  if (tapped) {
    emit.value_heads(prefix + "conv_out", taps.conv_out, {rows, qkv.cols}, config_, qkv.cols, dv);
    emit.floats(prefix + "q_l2norm", taps.q_l2norm, {rows, nk, dk});
    emit.floats(prefix + "k_l2norm", taps.k_l2norm, {rows, nk, dk});
    emit.value_heads(prefix + "g", taps.g, {rows, nv}, config_, nv, 1);
    emit.value_heads(prefix + "beta", taps.beta, {rows, nv}, config_, nv, 1);
    emit.value_heads(prefix + "core_out", taps.core_out, {rows, nv, dv}, config_, nv * dv, dv);
    emit.value_heads(prefix + "gated_norm", gated.data, {rows * nv, dv}, config_, nv * dv, dv);
    emit.matrix(prefix + "out", out);
  }
}

void HybridDecoder::attention_layer(const Layer& layer, const std::string& name, ops::Matrix in, ops::Matrix out,
                                    TapEmitter& emit) {
  const Scratch::Frame frame(scratch_);
  const AttentionLayer& attention = layer.attention;
  const std::int64_t rows = in.rows;
  const std::int64_t nh = config_.num_q_heads, nkv = config_.num_kv_heads, hd = config_.head_dim;
  const ops::Matrix q_gate = scratch_.matrix(rows, 2 * nh * hd);
  const auto [k, v] = scratch_.matrices<2>(rows, nkv * hd);
  const ops::LinearOut projections[] = {
      {attention.q_gate.get(), q_gate.data}, {attention.k.get(), k.data}, {attention.v.get(), v.data}};
  backend_.linear(in, projections);

  const ops::AttentionWeights weights{attention.q_norm.f32(), attention.k_norm.f32(), config_.num_q_heads,
                                      config_.num_kv_heads,   config_.head_dim,       config_.rotary_dim,
                                      config_.rms_norm_eps};
  const std::string prefix = name + ".attn.";
  ops::AttentionTaps taps;
  const bool tapped = emit.wants(prefix + "q_norm");
  if (tapped) {
    taps.q_norm = scratch_.floats(rows * nh * hd);
    taps.k_norm = scratch_.floats(rows * nkv * hd);
    taps.q_rope = scratch_.floats(rows * nh * hd);
    taps.k_rope = scratch_.floats(rows * nkv * hd);
    taps.gate = scratch_.floats(rows * nh * hd);
    emit.matrix(prefix + "in", in);
    emit.matrix(prefix + "v", v);
  }
  const ops::Matrix gated = scratch_.matrix(rows, nh * hd);
  backend_.attention_mixer(layer.state_index, weights, q_gate, k, v, rope_cos_, rope_sin_, gated,
                           tapped ? &taps : nullptr);
  const ops::LinearOut projection{attention.out.get(), out.data};
  backend_.linear(gated, {&projection, 1});
  if (tapped) {
    emit.floats(prefix + "q_norm", taps.q_norm, {rows, nh, hd});
    emit.floats(prefix + "k_norm", taps.k_norm, {rows, nkv, hd});
    emit.floats(prefix + "q_rope", taps.q_rope, {rows, nh, hd});
    emit.floats(prefix + "k_rope", taps.k_rope, {rows, nkv, hd});
    emit.floats(prefix + "gate", taps.gate, {rows, nh * hd});
    emit.matrix(prefix + "gated", gated);
    emit.matrix(prefix + "out", out);
  }
}

void HybridDecoder::ffn(const Layer& layer, const std::string& name, ops::Matrix in, ops::Matrix out, TapEmitter& emit) {
  const Scratch::Frame frame(scratch_);
  const std::string prefix = name + ".ffn.";
  emit.matrix(prefix + "in", in);
  if (config_.num_experts == 0) {
    const DenseFfn& dense = layer.ffn;
    const ops::Matrix gate = scratch_.matrix(in.rows, config_.intermediate_size);
    const ops::Matrix up = scratch_.matrix(in.rows, config_.intermediate_size);
    const ops::LinearOut projections[] = {{dense.gate.get(), gate.data}, {dense.up.get(), up.data}};
    backend_.linear(in, projections);
    backend_.swiglu(gate, up, gate);
    const ops::LinearOut projection{dense.down.get(), out.data};
    backend_.linear(gate, {&projection, 1});
  } else {
    const MoeFfn& moe = layer.moe;
    const ops::MoeWeights weights{moe.router.get(),      moe.gate.get(),      moe.up.get(),
                                  moe.down.get(),        moe.shared_gate.get(), moe.shared_up.get(),
                                  moe.shared_down.get(), moe.shared_router.get(), config_.num_experts_per_token};
    ops::MoeTaps taps;
    const std::int64_t rows = in.rows, top_k = config_.num_experts_per_token;
    const auto tap = [&](const char* stage, std::int64_t count) {
      return emit.wants(prefix + stage) ? scratch_.floats(count) : nullptr;
    };
    taps.router_logits = tap("router_logits", rows * config_.num_experts);
    taps.topk_indices = reinterpret_cast<std::int32_t*>(tap("topk_indices", rows * top_k));
    taps.topk_weights = tap("topk_weights", rows * top_k);
    taps.experts = tap("experts", rows * in.cols);
    taps.shared_expert = tap("shared_expert", rows * in.cols);
    taps.shared_gate_logit = tap("shared_gate_logit", rows);
    taps.expert_out_norm = tap("expert_out_norm", rows * top_k);
    backend_.moe_ffn(in, weights, out, emit ? &taps : nullptr);
    emit.floats(prefix + "router_logits", taps.router_logits, {rows, config_.num_experts});
    emit.ints(prefix + "topk_indices", taps.topk_indices, {rows, top_k});
    emit.floats(prefix + "topk_weights", taps.topk_weights, {rows, top_k});
    emit.floats(prefix + "experts", taps.experts, {rows, in.cols});
    emit.floats(prefix + "shared_expert", taps.shared_expert, {rows, in.cols});
    emit.floats(prefix + "shared_gate_logit", taps.shared_gate_logit, {rows, 1});
    emit.floats(prefix + "expert_out_norm", taps.expert_out_norm, {rows, top_k});
  }
  emit.matrix(prefix + "out", out);
}

}  // namespace heirloom::model
