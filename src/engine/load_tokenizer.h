// The tokenizer of an opened model, from tokenizer.json or from a GGUF's keys.
#pragma once

#include "model/model_files.h"
#include "text/tokenizer.h"

namespace heirloom {

/// Error{bad_file} when the files hold no tokenizer, or one that we would not reproduce exactly.
text::Tokenizer load_tokenizer(const model::ModelFiles& files);

}  // namespace heirloom
