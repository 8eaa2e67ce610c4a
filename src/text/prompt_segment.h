// A rendered prompt as pieces of known origin. What the chat template writes itself is trusted; what came in with the
// request (message texts, tool arguments, names) is not, and can never become a control token.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heirloom::text {

struct PromptSegment {
  std::string text;
  bool trusted = true;
  bool operator==(const PromptSegment&) const = default;
};

/// The plain prompt: all texts joined.
std::string join_segments(std::span<const PromptSegment> segments);

/// How often the template itself wrote `placeholder` (e.g. "<|image_pad|>"). The same text in a user's message does not
/// count. The tokens made by Tokenizer::encode_segments hold exactly as many placeholder ids.
std::size_t count_placeholders(std::span<const PromptSegment> segments, std::string_view placeholder);

/// The prompt with the k-th trusted `placeholder` replaced by replacements[k] (trusted text). Throws Error{usage} unless
/// there are exactly as many placeholders as replacements; `what` names them in the message ("pictures").
std::vector<PromptSegment> expand_placeholders(std::span<const PromptSegment> segments, std::string_view placeholder,
                                               std::span<const std::string> replacements, std::string_view what);

}  // namespace heirloom::text
