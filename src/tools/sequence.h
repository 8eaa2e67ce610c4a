// One token timeline driven by hand, for tools that look inside a model: state buffers and pages of a single sequence.
#pragma once

#include <vector>

#include "model/model.h"

namespace heirloom::tools {

class Sequence {
 public:
  Sequence(model::Model& model, DType kv_type = DType::f32);

  /// Feeds `ids` at the given M-RoPE positions ([3, n], row-major) and returns logits of `logits_rows` (indices into ids).
  std::vector<float> feed(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
                          std::vector<model::FeatureRows> features, std::vector<std::int32_t> logits_rows,
                          model::Taps* taps = nullptr);

  /// Feeds `ids` of plain text and returns the best next token, chosen where the logits are: on a GPU one id comes back, not a row of
  /// logits.
  std::int32_t feed_greedy(std::span<const std::int32_t> ids, std::vector<model::FeatureRows> features = {});

  /// Allocates what `tokens` tokens need, so that no later call does.
  void reserve(std::int32_t tokens);
  /// Back to no tokens; memory is kept.
  void clear();
  /// A copy that goes its own way: state and KV pages are duplicated.
  Sequence fork() const;

  std::int32_t num_tokens() const { return num_tokens_; }
  const ops::StateShape& shape() const { return shape_; }
  /// Host copies of one GDN layer's state: [num_v_heads, head_k_dim, head_v_dim] and [conv_channels, conv_kernel] (the
  /// newest column last, zeros on the left of a short prompt).
  std::vector<float> recurrent_state(int gdn_layer) const;
  std::vector<float> conv_state(int gdn_layer) const;

 private:
  void add_page();
  model::StepOutput forward(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
                            std::vector<model::FeatureRows> features, std::vector<std::int32_t> logits_rows, model::Taps* taps);

  model::Model& model_;
  ops::StateShape shape_;
  ops::Buffer conv_, recurrent_, best_id_;
  std::vector<ops::Buffer> pages_;
  std::vector<std::byte*> page_table_;
  std::int32_t num_tokens_ = 0;
};

/// Positions first, first + 1, ... of plain text, [3, count].
std::vector<std::int32_t> text_positions(std::int32_t first, std::int32_t count);

}  // namespace heirloom::tools
