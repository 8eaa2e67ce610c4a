#include "engine/volatile_lines.h"

#include <algorithm>
#include <cctype>

namespace heirloom::engine {
namespace {

constexpr std::string_view kVolatilePrefix = "x-anthropic-billing-header:";

bool starts_volatile(std::string_view text) {
  return text.size() >= kVolatilePrefix.size() &&
         std::equal(kVolatilePrefix.begin(), kVolatilePrefix.end(), text.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

}  // namespace

std::string_view without_volatile_lines(std::string_view text) {
  while (starts_volatile(text)) {
    const std::size_t end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return text;
}

void strip_volatile_lines(Json& messages) {
  if (!messages.is_array() || messages.empty() || !messages[0].is_object()) return;
  Json& first = messages[0];
  const auto role = first.find("role");
  if (role == first.end() || (*role != "system" && *role != "developer") || !first.contains("content")) return;
  Json& content = first["content"];
  if (content.is_string()) {
    content = std::string(without_volatile_lines(content.get_ref<const std::string&>()));
    return;
  }
  while (content.is_array() && !content.empty()) {
    Json& part = content[0];
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) return;
    const std::string text = part["text"].get<std::string>();
    const std::string_view kept = without_volatile_lines(text);
    if (kept.size() == text.size()) return;
    if (!kept.empty()) {
      part["text"] = std::string(kept);
      return;
    }
    content.erase(content.begin());
  }
}

}  // namespace heirloom::engine
