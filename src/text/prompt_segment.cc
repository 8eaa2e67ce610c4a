#include "text/prompt_segment.h"

#include "base/check.h"

namespace heirloom::text {

std::string join_segments(std::span<const PromptSegment> segments) {
  std::string text;
  for (const auto& segment : segments) text += segment.text;
  return text;
}

std::size_t count_placeholders(std::span<const PromptSegment> segments, std::string_view placeholder) {
  std::size_t count = 0;
  for (const auto& segment : segments) {
    if (!segment.trusted || placeholder.empty()) continue;
    for (std::size_t at = 0; (at = segment.text.find(placeholder, at)) != std::string::npos; at += placeholder.size()) ++count;
  }
  return count;
}

std::vector<PromptSegment> expand_placeholders(std::span<const PromptSegment> segments, std::string_view placeholder,
                                               std::span<const std::string> replacements, std::string_view what) {
  const std::size_t count = count_placeholders(segments, placeholder);
  if (count != replacements.size()) {
    fail(ErrorKind::usage, "the chat template placed {} of {} {}; give the {} as parts of the messages", count,
         replacements.size(), what, what);
  }
  std::vector<PromptSegment> out;
  std::size_t next = 0;
  for (const auto& segment : segments) {
    if (!segment.trusted) {
      out.push_back(segment);
      continue;
    }
    std::string text;
    std::size_t copied = 0;
    for (std::size_t at = 0; !placeholder.empty() && (at = segment.text.find(placeholder, at)) != std::string::npos;) {
      text.append(segment.text, copied, at - copied);
      text += replacements[next++];
      copied = at += placeholder.size();
    }
    text.append(segment.text, copied);
    out.push_back({std::move(text), true});
  }
  return out;
}

}  // namespace heirloom::text
