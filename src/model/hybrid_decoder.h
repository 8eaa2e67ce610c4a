// The language model that all three families share: Gated DeltaNet and softmax-attention layers with a dense or a
// mixture-of-experts feed-forward network. hybrid_decoder.cc is the readable forward pass; bind_decoder.cc fills the
// weights from files.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"
#include "model/scratch.h"
#include "model/tap_emitter.h"

namespace heirloom::model {

class WeightReader;
using LoadProgress = std::function<void(double fraction)>;

class HybridDecoder {
 public:
  /// Binds (packs) every weight; `progress` (may be empty) is called after each layer. Error{bad_file} on a missing tensor
  /// or a shape that the config does not ask for.
  HybridDecoder(ops::Backend& backend, const TextConfig& config, const WeightReader& weights,
                const LoadProgress& progress);
  /// A decoder without weights, for passes over models larger than memory (layer_stream.h): load_layer and run_layer only.
  HybridDecoder(ops::Backend& backend, const TextConfig& config);

  /// Binds layer `index` in place of the one held before.
  void load_layer(const WeightReader& weights, int index);
  /// Runs `hidden` [input.plan.num_rows, hidden_size] in place through the layer held. The plan's states are those of this
  /// one layer (layer_state_shape); of `input`, the plan and the positions are read.
  void run_layer(const StepInput& input, ops::Matrix hidden, Taps* taps);
  ops::StateShape layer_state_shape(DType kv_type) const;

  StepOutput forward(const StepInput& input, Taps* taps);
  ops::StateShape state_shape(DType kv_type) const;
  std::uint64_t active_weight_bytes() const;
  std::uint64_t active_parameters(bool with_head) const;
  std::uint64_t weight_bytes() const;
  const TextConfig& config() const { return config_; }

 private:
  using WeightPtr = std::unique_ptr<ops::Weight>;

  struct GdnLayer {
    WeightPtr qkv, z, a, b, out;
    ops::Buffer conv, dt_bias, neg_exp_a, norm;
  };
  struct AttentionLayer {
    WeightPtr q_gate, k, v, out;
    ops::Buffer q_norm, k_norm;
  };
  struct DenseFfn {
    WeightPtr gate, up, down;
  };
  struct MoeFfn {
    WeightPtr router, gate, up, down, shared_gate, shared_up, shared_down, shared_router;
  };
  struct Layer {
    LayerType type = LayerType::linear_attention;
    int state_index = 0;  // among the layers of its type
    ops::Buffer input_norm, post_attention_norm;
    GdnLayer gdn;
    AttentionLayer attention;
    DenseFfn ffn;
    MoeFfn moe;
  };

  Layer bind_layer(const WeightReader& weights, int index) const;
  void layer_step(const Layer& layer, const std::string& name, ops::Matrix hidden, ops::Matrix normed, ops::Matrix delta,
                  TapEmitter& emit);
  static std::vector<const WeightPtr*> layer_weights(const Layer& layer);
  template <typename Measure>
  std::uint64_t active_total(bool with_head, const Measure& measure) const;
  void gdn_layer(const Layer& layer, const std::string& name, ops::Matrix in, ops::Matrix out, TapEmitter& emit);
  void attention_layer(const Layer& layer, const std::string& name, ops::Matrix in, ops::Matrix out, TapEmitter& emit);
  void ffn(const Layer& layer, const std::string& name, ops::Matrix in, ops::Matrix out, TapEmitter& emit);
  struct StepIds {
    const std::int32_t *tokens, *logits_rows;
  };
  void make_rope(const StepInput& input);
  StepIds upload_step(const StepInput& input);
  void emit_rope(std::int64_t rows, TapEmitter& emit) const;

  ops::Backend& backend_;
  TextConfig config_;
  std::vector<Layer> layers_;
  int held_layer_ = -1;  // load_layer's index: layers_ is that one layer
  WeightPtr embedding_;
  WeightPtr head_;  // null when tied to the embedding
  ops::Buffer final_norm_;
  std::vector<float> inverse_frequencies_;
  Scratch scratch_;
  float* rope_cos_ = nullptr;  // device [rows, rotary_dim / 2], of the current step
  float* rope_sin_ = nullptr;
  std::vector<float> rope_host_;
  std::vector<float> rope_table_;  // [position][cosines, sines], for positions below kRopeTable
  std::vector<char> rope_known_;   // which of them are filled
};

}  // namespace heirloom::model
