#include "text/messages.h"

#include <string>

#include "base/check.h"

namespace heirloom::text {
namespace {

using nlohmann::ordered_json;

const ordered_json& member(const ordered_json& object, const char* key) {
  static const ordered_json null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

std::string role_of(const ordered_json& message, std::size_t index) {
  if (!message.is_object()) fail(ErrorKind::usage, "messages[{}] is not an object", index);
  const ordered_json& value = member(message, "role");
  const std::string role = value.is_string() ? value.get<std::string>() : std::string();
  if (role == "developer") return "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    fail(ErrorKind::usage, "messages[{}].role is {}, expected system, developer, user, assistant or tool", index,
         value.is_string() ? "\"" + role.substr(0, 40) + "\"" : "missing");
  }
  return role;
}

ordered_json content_of(const ordered_json& message, std::size_t index) {
  const ordered_json& content = member(message, "content");
  if (content.is_null()) return "";
  if (content.is_string()) return content;
  if (!content.is_array()) fail(ErrorKind::usage, "messages[{}].content is neither a text nor a list of parts", index);
  ordered_json parts = content;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ordered_json& part = parts[i];
    if (part.is_string()) part = {{"type", "text"}, {"text", part}};
    if (!part.is_object()) fail(ErrorKind::usage, "messages[{}].content[{}] is not an object", index, i);
    const ordered_json& type = member(part, "type");
    if (type.is_string() && (type == "input_text" || type == "output_text" || type == "refusal")) {
      const ordered_json text = type == "refusal" ? member(part, "refusal") : member(part, "text");
      part = {{"type", "text"}, {"text", text}};
    }
    if (part.contains("text") && !part["text"].is_string()) {
      fail(ErrorKind::usage, "messages[{}].content[{}].text is not a string", index, i);
    }
  }
  return parts;
}

void parse_arguments(ordered_json& function) {
  if (!function.is_object() || !function.contains("arguments")) return;
  ordered_json& arguments = function["arguments"];
  if (arguments.is_null()) arguments = ordered_json::object();
  if (!arguments.is_string()) return;
  const std::string text = arguments.get<std::string>();
  ordered_json parsed = ordered_json::parse(text, nullptr, false);
  if (parsed.is_object()) {
    arguments = std::move(parsed);
  } else if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    arguments = ordered_json::object();  // a call without arguments
  } else {
    arguments = {{"arguments", text}};
  }
}

ordered_json tool_calls_of(const ordered_json& message, std::size_t index) {
  ordered_json calls = member(message, "tool_calls");
  if (calls.is_null()) return calls;
  if (!calls.is_array()) fail(ErrorKind::usage, "messages[{}].tool_calls is not a list", index);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].is_object()) fail(ErrorKind::usage, "messages[{}].tool_calls[{}] is not an object", index, i);
    ordered_json& function = calls[i].contains("function") ? calls[i]["function"] : calls[i];
    if (!function.is_object() || !member(function, "name").is_string()) {
      fail(ErrorKind::usage, "messages[{}].tool_calls[{}] has no function name", index, i);
    }
    parse_arguments(function);
  }
  return calls;
}

ordered_json normalize_message(const ordered_json& message, std::size_t index) {
  ordered_json out = message;
  out["role"] = role_of(message, index);
  out["content"] = content_of(message, index);
  ordered_json calls = tool_calls_of(message, index);
  if (calls.empty()) {
    out.erase("tool_calls");
  } else {
    out["tool_calls"] = std::move(calls);
  }
  ordered_json reasoning;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    if (reasoning.is_null()) reasoning = member(message, key);
    if (member(message, key).is_null()) out.erase(key);
  }
  if (!reasoning.is_null()) {
    out["reasoning_content"] = reasoning;
    if (!out.contains("thinking")) out["thinking"] = reasoning;
  }
  return out;
}

/// Content as a list of parts, for joining.
ordered_json as_parts(const ordered_json& content) {
  return content.is_array() ? content : ordered_json::array({{{"type", "text"}, {"text", content}}});
}

ordered_json join_contents(const ordered_json& first, const ordered_json& second) {
  if (first.is_string() && second.is_string()) {
    const auto a = first.get<std::string>();
    const auto b = second.get<std::string>();
    return a.empty() || b.empty() ? a + b : a + "\n\n" + b;
  }
  ordered_json parts = as_parts(first);
  parts.push_back({{"type", "text"}, {"text", "\n\n"}});
  for (const auto& part : as_parts(second)) parts.push_back(part);
  return parts;
}

}  // namespace

ordered_json normalize_messages(const ordered_json& messages) {
  if (!messages.is_array()) fail(ErrorKind::usage, "messages is not a list");
  if (messages.empty()) fail(ErrorKind::usage, "messages is empty; give at least one message");
  ordered_json out = ordered_json::array();
  bool has_user = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ordered_json message = normalize_message(messages[i], i);
    if (message["role"] == "system" && !out.empty()) {
      if (out.size() == 1 && out[0]["role"] == "system") {
        out[0]["content"] = join_contents(out[0]["content"], message["content"]);
        continue;
      }
      message["role"] = "user";
    }
    has_user |= message["role"] == "user";
    out.push_back(std::move(message));
  }
  if (!has_user) {
    const std::size_t at = out[0]["role"] == "system" ? 1 : 0;
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(at), ordered_json{{"role", "user"}, {"content", ""}});
  }
  return out;
}

}  // namespace heirloom::text
