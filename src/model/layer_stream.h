// A pass over many sequences that holds one layer's weights at a time: layer 0 for all sequences, then layer 1, and so on.
// A checkpoint larger than memory passes this way, and every weight is read once however many sequences there are. What
// stays in memory is the hidden state of every token and the states of the sequences of one step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/model_files.h"

namespace heirloom::model {

/// One sequence from its beginning.
struct StreamedSequence {
  struct Features {
    std::int64_t first_row = 0;
    std::vector<float> values;  // [rows, hidden_size]: stand in for these rows' embeddings
  };
  std::vector<std::int32_t> token_ids;  // in [0, vocab_size)
  std::vector<std::int32_t> positions;  // [3, token_ids.size()], as StepInput has them
  std::vector<Features> features;
};

/// Runs every sequence through every layer; `taps` hears of each step of each layer under the names of a forward pass
/// (sequences follow each other in the given order, several in a step). No logits are made. `progress` gets 0..1 and may be
/// empty. Error{bad_file} on a missing or misshapen tensor, when its layer's turn comes.
void stream_layers(const ModelFiles& files, ops::Backend& backend, std::span<const StreamedSequence> sequences, Taps& taps,
                   const std::function<void(double fraction)>& progress);

}  // namespace heirloom::model
