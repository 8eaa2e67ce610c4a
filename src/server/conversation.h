// The three APIs' ways to write a conversation, made into the one that the engine takes: OpenAI-style messages with
// pictures as {"type": "image"} parts, and the pictures' bytes in order. What templates need beyond that (late system
// messages, arguments as objects) is the engine's business (text/messages.h).
#pragma once

#include <string>
#include <vector>

#include "heirloom/engine.h"
#include "server/image_source.h"

namespace heirloom::server {

struct Conversation {
  Json messages = Json::array();
  std::vector<ImageInput> images;
};

/// `messages` of /v1/chat/completions. Throws ApiError(400) naming the message and part at fault.
Conversation conversation_from_chat(const Json& messages, const ImagePolicy& policy);
/// `system` (may be null) and `messages` of /v1/messages.
Conversation conversation_from_anthropic(const Json* system, const Json& messages, const ImagePolicy& policy);
/// `instructions` (may be null) and `input` (string or items) of /v1/responses.
Conversation conversation_from_responses(const std::string* instructions, const Json& input, const ImagePolicy& policy);

/// Text of the last user message; empty if there is none.
std::string last_user_text(const Json& messages);

/// Tools in the chat form, checked: [{"type": "function", "function": {"name", "description"?, "parameters"?, "strict"?}}].
Json tools_from_chat(const Json& tools);
Json tools_from_anthropic(const Json& tools);
Json tools_from_responses(const Json& tools);

}  // namespace heirloom::server
