// Log probabilities in the shapes of the chat and the text completion APIs.
#pragma once

#include <vector>

#include "heirloom/engine.h"

namespace heirloom::server {

/// Entries of chat's `logprobs.content`, end tokens left out.
Json chat_logprobs(const Engine& engine, const std::vector<TokenEvent>& tokens);

/// The text API's object: tokens, token_logprobs, top_logprobs, text_offset (in characters from `offset`, which is advanced).
Json text_logprobs(const Engine& engine, const std::vector<TokenEvent>& tokens, std::int64_t& offset);

}  // namespace heirloom::server
