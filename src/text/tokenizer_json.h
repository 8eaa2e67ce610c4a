// The texts of tokenizer.json and tokenizer_config.json for a tokenizer, wherever it came from: what a Hugging Face folder
// made of a GGUF file needs.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace heirloom::text {

/// Tokenizer::from_json of it encodes alike, and so does the `tokenizers` library.
std::string tokenizer_json(const Tokenizer& tokenizer);

/// End and padding tokens, the vision placeholders that the vocabulary has. `context_length` becomes model_max_length.
std::string tokenizer_config_json(const Tokenizer& tokenizer, int context_length);

}  // namespace heirloom::text
