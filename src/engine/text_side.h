// The parts of a model's files that concern text: tokenizer, end tokens, default sampling. From a Hugging Face folder or
// from GGUF keys.
#pragma once

#include <cstdint>
#include <vector>

#include "heirloom/sampling.h"
#include "model/model_files.h"
#include "text/tokenizer.h"

namespace heirloom::engine {

/// Error{bad_file} naming the file when there is no usable tokenizer.
text::Tokenizer open_tokenizer(const model::ModelFiles& files);

/// How the model's makers would have it answer.
struct GenerationDefaults {
  SamplingParams sampling;                // greedy unless do_sample, as transformers reads it
  int max_new_tokens = 0;                 // 0 = not said
  std::vector<std::int32_t> end_tokens;   // any of them ends an answer; ascending
};

/// generation_config.json (or its copy in a GGUF), GGUF's general.sampling.* keys, the tokenizer's end token where neither
/// says. Values out of range are left at their defaults with a warning.
GenerationDefaults generation_defaults(const model::ModelFiles& files, const text::Tokenizer& tokenizer);

}  // namespace heirloom::engine
