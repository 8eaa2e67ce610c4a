#include "model/layer_stream.h"

#include <algorithm>

#include "base/check.h"
#include "format/quant_blocks.h"
#include "model/hybrid_decoder.h"

namespace heirloom::model {
namespace {

// Enough rows that the experts' weights are used many times while they are in the caches; temporaries are about 200 KB a
// row in a 35B model.
constexpr std::int32_t kStepRows = 1024;

/// Sequences [first, last) that run together, `rows` tokens in all.
struct Step {
  std::size_t first = 0, last = 0;
  std::int32_t rows = 0;
  std::int64_t first_row = 0;  // among all rows
};

std::int32_t length(const StreamedSequence& sequence) { return static_cast<std::int32_t>(sequence.token_ids.size()); }

std::vector<Step> cut_into_steps(std::span<const StreamedSequence> sequences) {
  std::vector<Step> steps;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int32_t rows = length(sequences[i]);
    if (steps.empty() || steps.back().rows + rows > kStepRows) steps.push_back({i, i, 0, row});
    steps.back().last = i + 1;
    steps.back().rows += rows;
    row += rows;
  }
  return steps;
}

/// Embeddings, with features in their places: [all rows, hidden_size].
std::vector<float> embed(const WeightReader& reader, const TextConfig& text, std::span<const StreamedSequence> sequences) {
  const ops::WeightData table = reader.matrix("token_embd.weight", text.vocab_size, text.hidden_size);
  if (!can_dequantize(table.type)) {
    fail(ErrorKind::bad_file, "{}: type {} holds no weights; expected a float or quantised type", table.name, dtype_name(table.type));
  }
  const auto width = static_cast<std::size_t>(text.hidden_size);
  const std::uint64_t stride = row_bytes(table.type, width);
  std::vector<float> hidden;
  for (const StreamedSequence& sequence : sequences) {
    const std::size_t first = hidden.size();
    hidden.resize(first + sequence.token_ids.size() * width);
    float* to = hidden.data() + first;
    for (const std::int32_t id : sequence.token_ids) {
      HEIRLOOM_CHECK(id >= 0 && id < text.vocab_size);
      dequantize_row(table.type, table.slabs.front().data + stride * static_cast<std::uint64_t>(id), to, width);
      to += width;
    }
    for (const StreamedSequence::Features& part : sequence.features) {
      HEIRLOOM_CHECK(static_cast<std::size_t>(part.first_row) * width + part.values.size() <= sequence.token_ids.size() * width);
      std::copy(part.values.begin(), part.values.end(), hidden.data() + first + static_cast<std::size_t>(part.first_row) * width);
    }
  }
  reader.release(table);
  return hidden;
}

/// States of the sequences of a step, for one layer. Kept from step to step, zeroed for each.
class StepStates {
 public:
  explicit StepStates(ops::Backend& backend) : backend_(backend) {}

  ops::SequenceStep make(const ops::StateShape& shape, std::size_t index, std::int32_t first_row, std::int32_t rows) {
    if (index == sequences_.size()) sequences_.emplace_back();
    Sequence& sequence = sequences_[index];
    ops::SequenceStep step;
    step.first_row = first_row;
    step.num_rows = rows;
    step.conv = zeroed(sequence.conv, shape.num_gdn_layers > 0 ? shape.conv_floats() : 0);
    step.recurrent = zeroed(sequence.recurrent, shape.num_gdn_layers > 0 ? shape.recurrent_floats() : 0);
    if (shape.num_attention_layers > 0) {
      while (static_cast<std::int32_t>(sequence.pages.size()) * ops::StateShape::kPageTokens < rows) {
        sequence.pages.push_back(backend_.make_buffer(shape.page_bytes()));
        sequence.page_table.push_back(static_cast<std::byte*>(sequence.pages.back().data()));
      }
      step.pages = sequence.page_table;
    }
    return step;
  }

 private:
  struct Sequence {
    ops::Buffer conv, recurrent;
    std::vector<ops::Buffer> pages;
    std::vector<std::byte*> page_table;
  };

  float* zeroed(ops::Buffer& buffer, std::size_t floats) {
    if (floats == 0) return nullptr;
    if (!buffer) buffer = backend_.make_buffer(floats * sizeof(float));
    backend_.zero(buffer.data(), buffer.bytes());
    return buffer.f32();
  }

  ops::Backend& backend_;
  std::vector<Sequence> sequences_;
};

/// Positions of several sequences side by side: [3, rows].
std::vector<std::int32_t> join_positions(std::span<const StreamedSequence> sequences) {
  std::vector<std::int32_t> joined;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    for (const StreamedSequence& sequence : sequences) {
      const std::size_t n = sequence.token_ids.size();
      HEIRLOOM_CHECK(sequence.positions.size() == 3 * n);
      const auto from = sequence.positions.begin() + static_cast<std::ptrdiff_t>(axis * n);
      joined.insert(joined.end(), from, from + static_cast<std::ptrdiff_t>(n));
    }
  }
  return joined;
}

}  // namespace

void stream_layers(const ModelFiles& files, ops::Backend& backend, std::span<const StreamedSequence> sequences, Taps& taps,
                   const std::function<void(double fraction)>& progress) {
  const TextConfig& text = files.config.text;
  const WeightReader reader(files.naming, files.config, files.text, files.vision);
  HybridDecoder decoder(backend, text);
  const std::vector<Step> steps = cut_into_steps(sequences);
  std::vector<float> hidden = embed(reader, text, sequences);
  StepStates states(backend);
  ops::Buffer device;
  for (int layer = 0; layer < text.num_layers; ++layer) {
    decoder.load_layer(reader, layer);
    const ops::StateShape shape = decoder.layer_state_shape(DType::f32);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      if (progress) {
        progress((layer + static_cast<double>(s) / static_cast<double>(steps.size())) / text.num_layers);
      }
      const auto part = sequences.subspan(step.first, step.last - step.first);
      StepInput input;
      input.plan.shape = shape;
      input.plan.num_rows = step.rows;
      std::int32_t row = 0;
      for (std::size_t i = 0; i < part.size(); ++i) {
        input.plan.sequences.push_back(states.make(shape, i, row, length(part[i])));
        row += length(part[i]);
      }
      input.positions = join_positions(part);
      float* host = hidden.data() + step.first_row * text.hidden_size;
      const std::size_t bytes = static_cast<std::size_t>(step.rows) * static_cast<std::size_t>(text.hidden_size) * sizeof(float);
      if (device.bytes() < bytes) device = backend.make_buffer(bytes);
      backend.upload(device.data(), host, bytes);
      decoder.run_layer(input, {device.f32(), step.rows, text.hidden_size}, &taps);
      backend.download(host, device.data(), bytes);
    }
  }
}

}  // namespace heirloom::model
