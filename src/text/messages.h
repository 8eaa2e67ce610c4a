// What clients send as messages, made into what chat templates can take. All such rules are here, in one place:
//
//   role      `developer` is `system`.
//   content   missing or null becomes "" (templates test `content is string` and would print "None" otherwise). A list
//             stays a list; parts {"type": "input_text" | "output_text" | "refusal"} become {"type": "text"}.
//   tools     `tool_calls` that is null or [] is dropped. `function.arguments` given as a JSON string of an object becomes
//             the object, as OpenAI clients send it back; any other string is kept as {"arguments": "..."}.
//   thinking  `reasoning_content`, `reasoning` and `thinking` are one field; the first that is not null goes under
//             `reasoning_content` and `thinking` (as transformers 5.24 does), null ones are dropped.
//   system    A system message that is not the first would make the published templates fail. If the conversation starts
//             with system messages, all of those are joined into the first one, with a blank line between them. Any later
//             one is delivered at its place, as a user message of the same content, so that the prompt before it stays
//             exactly as it was and a prefix cache still hits.
//   user      Templates refuse a conversation without a user message. One that has none gets an empty user message after
//             its system message.
//
// Nothing else is changed; a role outside system, user, assistant, tool is refused.
#pragma once

#include <nlohmann/json.hpp>

namespace heirloom::text {

/// Throws Error{usage} naming the message's index for anything that is not a conversation: not an array, not an object,
/// an unknown role, a content that is neither text, list nor null.
nlohmann::ordered_json normalize_messages(const nlohmann::ordered_json& messages);

}  // namespace heirloom::text
