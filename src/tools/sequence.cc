#include "tools/sequence.h"

namespace heirloom::tools {

Sequence::Sequence(model::Model& model, DType kv_type) : model_(model), shape_(model.state_shape(kv_type)) {
  ops::Backend& backend = model.backend();
  conv_ = backend.make_buffer(shape_.conv_floats() * sizeof(float));
  recurrent_ = backend.make_buffer(shape_.recurrent_floats() * sizeof(float));
  clear();
}

void Sequence::clear() {
  ops::Backend& backend = model_.backend();
  if (conv_) backend.zero(conv_.data(), conv_.bytes());
  if (recurrent_) backend.zero(recurrent_.data(), recurrent_.bytes());
  num_tokens_ = 0;
}

void Sequence::reserve(std::int32_t tokens) {
  while (static_cast<std::int32_t>(pages_.size()) * ops::StateShape::kPageTokens < tokens) add_page();
  if (!best_id_) best_id_ = model_.backend().make_buffer(sizeof(std::int32_t));
}

Sequence Sequence::fork() const {
  ops::Backend& backend = model_.backend();
  Sequence copy(model_, shape_.kv_type);
  if (conv_) backend.copy(copy.conv_.data(), conv_.data(), conv_.bytes());
  if (recurrent_) backend.copy(copy.recurrent_.data(), recurrent_.data(), recurrent_.bytes());
  for (const ops::Buffer& page : pages_) {
    copy.add_page();
    backend.copy(copy.pages_.back().data(), page.data(), page.bytes());
  }
  copy.num_tokens_ = num_tokens_;
  return copy;
}

void Sequence::add_page() {
  pages_.push_back(model_.backend().make_buffer(shape_.page_bytes()));
  page_table_.push_back(static_cast<std::byte*>(pages_.back().data()));
}

model::StepOutput Sequence::forward(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
                                    std::vector<model::FeatureRows> features, std::vector<std::int32_t> logits_rows,
                                    model::Taps* taps) {
  const auto rows = static_cast<std::int32_t>(ids.size());
  reserve(num_tokens_ + rows);
  model::StepInput input;
  input.plan.shape = shape_;
  input.plan.num_rows = rows;
  ops::SequenceStep step;
  step.num_rows = rows;
  step.past_tokens = num_tokens_;
  step.conv = conv_.f32();
  step.recurrent = recurrent_.f32();
  step.pages = page_table_;
  input.plan.sequences.push_back(step);
  input.token_ids.assign(ids.begin(), ids.end());
  input.positions.assign(positions.begin(), positions.end());
  input.features = std::move(features);
  input.logits_rows = std::move(logits_rows);
  const model::StepOutput output = model_.forward(input, taps);
  num_tokens_ += rows;
  return output;
}

std::vector<float> Sequence::feed(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
                                  std::vector<model::FeatureRows> features, std::vector<std::int32_t> logits_rows,
                                  model::Taps* taps) {
  const model::StepOutput output = forward(ids, positions, std::move(features), std::move(logits_rows), taps);
  std::vector<float> logits(static_cast<std::size_t>(output.logits.rows * output.logits.cols));
  model_.backend().download(logits.data(), output.logits.data, logits.size() * sizeof(float));
  return logits;
}

std::int32_t Sequence::feed_greedy(std::span<const std::int32_t> ids, std::vector<model::FeatureRows> features) {
  const auto rows = static_cast<std::int32_t>(ids.size());
  const model::StepOutput output = forward(ids, text_positions(num_tokens_, rows), std::move(features), {rows - 1}, nullptr);
  ops::Backend& backend = model_.backend();
  backend.argmax(output.logits, best_id_.i32());
  std::int32_t id = 0;
  backend.download(&id, best_id_.data(), sizeof(id));
  return id;
}

std::vector<float> Sequence::recurrent_state(int gdn_layer) const {
  const std::size_t size = shape_.recurrent_floats() / static_cast<std::size_t>(shape_.num_gdn_layers);
  std::vector<float> values(size);
  model_.backend().download(values.data(), recurrent_.f32() + size * static_cast<std::size_t>(gdn_layer),
                            size * sizeof(float));
  return values;
}

std::vector<float> Sequence::conv_state(int gdn_layer) const {
  const std::size_t size = shape_.conv_floats() / static_cast<std::size_t>(shape_.num_gdn_layers);
  std::vector<float> rows(size), columns(size);
  model_.backend().download(rows.data(), conv_.f32() + size * static_cast<std::size_t>(gdn_layer), size * sizeof(float));
  const auto kernel = static_cast<std::size_t>(shape_.conv_kernel), channels = static_cast<std::size_t>(shape_.conv_channels);
  for (std::size_t k = 0; k < kernel; ++k) {
    for (std::size_t c = 0; c < channels; ++c) columns[c * kernel + k] = rows[k * channels + c];
  }
  return columns;
}

std::vector<std::int32_t> text_positions(std::int32_t first, std::int32_t count) {
  std::vector<std::int32_t> positions;
  for (int axis = 0; axis < 3; ++axis) {
    for (std::int32_t i = 0; i < count; ++i) positions.push_back(first + i);
  }
  return positions;
}

}  // namespace heirloom::tools
