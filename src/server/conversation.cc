#include "server/conversation.h"

#include <algorithm>
#include <cctype>

#include "base/printable.h"
#include "server/fields.h"

namespace heirloom::server {
namespace {

std::string indexed(const std::string& path, std::size_t i) { return fmt::format("{}[{}]", path, i); }

void add_image(Conversation& out, ImageInput image, const std::string& path, const ImagePolicy& policy) {
  if (out.images.size() >= policy.max_images) bad_field(path, "more than {} pictures in one request", policy.max_images);
  out.images.push_back(std::move(image));
}

std::string required_text(Fields& fields, const char* name) {
  auto text = fields.string(name);
  if (!text) bad_field(fields.at(name), "is required");
  return std::move(*text);
}

Json text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }

/// Parts that are one text become a plain string, as most templates prefer it.
Json simplify(Json parts) {
  if (parts.size() == 1 && parts[0].at("type") == "text") return parts[0].at("text");
  return parts;
}

/// One part of a chat message's content.
Json chat_part(const Json& part, const std::string& path, const ImagePolicy& policy, Conversation& out) {
  Fields fields(part, path);
  const auto type = fields.string("type");
  if (!type) bad_field(fields.at("type"), "is required");
  if (*type == "text") return text_part(required_text(fields, "text"));
  if (*type == "refusal") return text_part(fields.string("refusal").value_or(""));
  if (*type == "image_url") {
    const Json& source = fields.require("image_url");
    std::string url;
    if (source.is_string()) {
      url = source.get<std::string>();
    } else {
      Fields image(source, fields.at("image_url"));
      image.choice("detail", "auto low high original");
      url = required_text(image, "url");
    }
    add_image(out, load_image_url(url, fields.at("image_url"), policy), path, policy);
    return {{"type", "image"}};
  }
  bad_field(path, "part type \"{}\" is not known here; expected text or image_url", printable(*type, 40));
}

Json chat_content(const Json& content, const std::string& path, const ImagePolicy& policy, bool may_be_empty, Conversation& out) {
  if (content.is_string()) return content;
  if (!content.is_array()) bad_field(path, "must be a string or an array of parts, found {}", describe(content));
  if (content.empty()) {
    if (may_be_empty) return "";
    bad_field(path, "must not be an empty array");
  }
  Json parts = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) parts.push_back(chat_part(content[i], indexed(path, i), policy, out));
  return simplify(std::move(parts));
}

Json make_call(const std::string& id, const std::string& name, const Json& arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json chat_calls(const Json& calls, const std::string& path) {
  Json result = Json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Fields call(calls[i], indexed(path, i));
    call.choice("type", "function");
    const Json& function = call.require("function");
    Fields inner(function, call.at("function"));
    const auto name = inner.string("name");
    if (!name) bad_field(inner.at("name"), "is required");
    const Json* arguments = inner.find("arguments");
    result.push_back(make_call(call.string("id").value_or(""), *name, arguments == nullptr ? Json::object() : *arguments));
  }
  return result;
}

void chat_message(const Json& message, const std::string& path, const ImagePolicy& policy, Conversation& out) {
  Fields fields(message, path);
  auto role = fields.string("role");
  if (!role) bad_field(fields.at("role"), "is required");
  const Json* content = fields.find("content");
  Json result;
  if (*role == "assistant") {
    result["role"] = "assistant";
    result["content"] = content == nullptr ? Json("") : chat_content(*content, fields.at("content"), policy, true, out);
    for (const char* name : {"reasoning_content", "reasoning"}) {
      if (const Json* text = fields.find(name); text != nullptr && text->is_string()) result["reasoning_content"] = *text;
    }
    if (const Json* calls = fields.array("tool_calls"); calls != nullptr && !calls->empty()) {
      result["tool_calls"] = chat_calls(*calls, fields.at("tool_calls"));
    } else if (const Json* legacy = fields.object("function_call")) {
      result["tool_calls"] = chat_calls(Json::array({{{"function", *legacy}}}), fields.at("function_call"));
    }
  } else if (*role == "system" || *role == "developer" || *role == "user") {
    result["role"] = *role == "user" ? "user" : "system";
    if (content == nullptr) bad_field(fields.at("content"), "is required for the role {}", *role);
    result["content"] = chat_content(*content, fields.at("content"), policy, false, out);
  } else if (*role == "tool") {
    result["role"] = "tool";
    if (const auto id = fields.string("tool_call_id")) result["tool_call_id"] = *id;
    result["content"] = content == nullptr ? Json("") : chat_content(*content, fields.at("content"), policy, true, out);
  } else {
    bad_field(fields.at("role"), "must be system, developer, user, assistant or tool, found \"{}\"", printable(*role, 40));
  }
  out.messages.push_back(std::move(result));
}

// ---- Anthropic ------------------------------------------------------------------------------------------------------

void anthropic_image(Fields& block, const ImagePolicy& policy, Conversation& out) {
  const Json& source = block.require("source");
  Fields fields(source, block.at("source"));
  const std::string type = required_text(fields, "type");
  if (type == "base64") {
    add_image(out, load_image_base64(required_text(fields, "data"), required_text(fields, "media_type"), fields.path(), policy),
              block.path(), policy);
  } else if (type == "url") {
    add_image(out, load_image_url(required_text(fields, "url"), fields.at("url"), policy), block.path(), policy);
  } else {
    bad_field(fields.at("type"), "must be base64 or url, found \"{}\"", printable(type, 40));
  }
}

/// Text and image blocks, as in a tool result.
Json anthropic_simple_content(const Json& content, const std::string& path, const ImagePolicy& policy, Conversation& out) {
  if (content.is_string()) return content;
  if (!content.is_array()) bad_field(path, "must be a string or an array of blocks, found {}", describe(content));
  Json parts = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], indexed(path, i));
    const std::string type = required_text(block, "type");
    if (type == "text") {
      parts.push_back(text_part(required_text(block, "text")));
    } else if (type == "image") {
      anthropic_image(block, policy, out);
      parts.push_back({{"type", "image"}});
    } else {
      bad_field(block.path(), "block type \"{}\" is not known here; expected text or image", printable(type, 40));
    }
  }
  if (parts.empty()) return "";
  return simplify(std::move(parts));
}

void anthropic_user(const Json& content, const std::string& path, const ImagePolicy& policy, Conversation& out) {
  Json parts = Json::array();
  const auto flush = [&] {
    if (!parts.empty()) out.messages.push_back({{"role", "user"}, {"content", simplify(std::move(parts))}});
    parts = Json::array();
  };
  if (content.empty()) bad_field(path, "must not be an empty array");
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], indexed(path, i));
    const std::string type = required_text(block, "type");
    if (type == "text") {
      parts.push_back(text_part(required_text(block, "text")));
    } else if (type == "image") {
      anthropic_image(block, policy, out);
      parts.push_back({{"type", "image"}});
    } else if (type == "tool_result") {
      flush();
      const std::string id = required_text(block, "tool_use_id");
      const Json* result = block.find("content");
      Json value = result == nullptr ? Json("") : anthropic_simple_content(*result, block.at("content"), policy, out);
      if (block.boolean("is_error").value_or(false) && value.is_string()) value = "Error: " + value.get<std::string>();
      out.messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(value)}});
    } else {
      bad_field(block.path(), "block type \"{}\" is not known here; expected text, image or tool_result", printable(type, 40));
    }
  }
  flush();
}

void anthropic_assistant(const Json& content, const std::string& path, Conversation& out) {
  std::string text;
  std::string reasoning;
  Json calls = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], indexed(path, i));
    const std::string type = required_text(block, "type");
    if (type == "text") {
      text += required_text(block, "text");
    } else if (type == "thinking") {
      reasoning += required_text(block, "thinking");
    } else if (type == "redacted_thinking") {
      continue;
    } else if (type == "tool_use") {
      const Json* input = block.find("input");
      calls.push_back(make_call(block.string("id").value_or(""), required_text(block, "name"), input == nullptr ? Json::object() : *input));
    } else {
      bad_field(block.path(), "block type \"{}\" is not known here; expected text, thinking or tool_use", printable(type, 40));
    }
  }
  Json message{{"role", "assistant"}, {"content", text}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  out.messages.push_back(std::move(message));
}

// ---- Responses ------------------------------------------------------------------------------------------------------

Json responses_content(const Json& content, const std::string& path, const ImagePolicy& policy, Conversation& out) {
  if (content.is_string()) return content;
  if (!content.is_array()) bad_field(path, "must be a string or an array of parts, found {}", describe(content));
  if (content.empty()) return "";
  Json parts = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], indexed(path, i));
    const std::string type = required_text(part, "type");
    if (type == "input_text" || type == "output_text" || type == "text") {
      parts.push_back(text_part(required_text(part, "text")));
    } else if (type == "refusal") {
      parts.push_back(text_part(required_text(part, "refusal")));
    } else if (type == "input_image") {
      part.choice("detail", "auto low high original");
      const Json* url = part.find("image_url");
      if (url == nullptr || !url->is_string()) bad_field(part.at("image_url"), "must be a data URI; uploaded files are not kept here");
      add_image(out, load_image_url(url->get<std::string>(), part.at("image_url"), policy), part.path(), policy);
      parts.push_back({{"type", "image"}});
    } else {
      bad_field(part.path(), "part type \"{}\" is not known here; expected input_text, output_text or input_image", printable(type, 40));
    }
  }
  return simplify(std::move(parts));
}

/// The assistant message that items of one turn (reasoning, text, calls) are gathered in.
Json& open_assistant_turn(Json& messages, bool has_calls_only) {
  if (messages.empty() || messages.back().at("role") != "assistant" || (!has_calls_only && messages.back().contains("tool_calls"))) {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  }
  return messages.back();
}

void responses_item(const Json& item, const std::string& path, const ImagePolicy& policy, Conversation& out) {
  Fields fields(item, path);
  const std::string type = fields.string("type").value_or("message");
  if (type == "message") {
    const std::string role = required_text(fields, "role");
    Json content = responses_content(fields.require("content"), fields.at("content"), policy, out);
    if (role == "assistant") {
      Json& turn = open_assistant_turn(out.messages, false);
      if (turn.at("content") == "") {
        turn["content"] = std::move(content);
      } else {
        out.messages.push_back({{"role", "assistant"}, {"content", std::move(content)}});
      }
    } else if (role == "user" || role == "system" || role == "developer") {
      out.messages.push_back({{"role", role == "user" ? "user" : "system"}, {"content", std::move(content)}});
    } else {
      bad_field(fields.at("role"), "must be system, developer, user or assistant, found \"{}\"", printable(role, 40));
    }
  } else if (type == "function_call") {
    const Json* arguments = fields.find("arguments");
    Json& turn = open_assistant_turn(out.messages, true);
    turn["tool_calls"].push_back(make_call(required_text(fields, "call_id"), required_text(fields, "name"),
                                           arguments == nullptr ? Json::object() : *arguments));
  } else if (type == "function_call_output") {
    const std::string id = required_text(fields, "call_id");
    Json content = responses_content(fields.require("output"), fields.at("output"), policy, out);
    out.messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(content)}});
  } else if (type == "reasoning") {
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json* parts = fields.array(name);
      if (parts == nullptr || !text.empty()) continue;
      for (const Json& part : *parts) {
        if (part.is_object() && part.contains("text") && part.at("text").is_string()) text += part.at("text").get<std::string>();
      }
    }
    if (!text.empty()) {
      out.messages.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", text}});
    }
  } else {
    bad_field(fields.at("type"), "item type \"{}\" is not known here; expected message, function_call, function_call_output or reasoning",
              printable(type, 40));
  }
}

// ---- tools ----------------------------------------------------------------------------------------------------------

Json make_tool(Fields& fields, const char* schema_name) {
  constexpr std::size_t kMaxName = 128;
  const std::string name = required_text(fields, "name");
  const bool good = !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
  });
  if (!good) bad_field(fields.at("name"), "must be 1 to {} letters, digits, '_', '-', '.', ':' or '/'", kMaxName);
  Json function{{"name", name}};
  if (const auto description = fields.string("description")) function["description"] = *description;
  if (const Json* schema = fields.object(schema_name)) function["parameters"] = *schema;
  if (const auto strict = fields.boolean("strict"); strict && *strict) function["strict"] = true;
  return {{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace

Conversation conversation_from_chat(const Json& messages, const ImagePolicy& policy) {
  if (!messages.is_array()) bad_field("messages", "must be an array, found {}", describe(messages));
  if (messages.empty()) bad_field("messages", "must not be empty");
  Conversation out;
  for (std::size_t i = 0; i < messages.size(); ++i) chat_message(messages[i], indexed("messages", i), policy, out);
  return out;
}

Conversation conversation_from_anthropic(const Json* system, const Json& messages, const ImagePolicy& policy) {
  Conversation out;
  if (system != nullptr) {
    std::string text;
    if (system->is_string()) {
      text = system->get<std::string>();
    } else if (system->is_array()) {
      for (std::size_t i = 0; i < system->size(); ++i) {
        Fields block((*system)[i], indexed("system", i));
        if (required_text(block, "type") != "text") bad_field(block.path(), "only text blocks are allowed");
        if (i > 0) text += '\n';
        text += required_text(block, "text");
      }
    } else {
      bad_field("system", "must be a string or an array of text blocks, found {}", describe(*system));
    }
    if (!text.empty()) out.messages.push_back({{"role", "system"}, {"content", text}});
  }
  if (!messages.is_array()) bad_field("messages", "must be an array, found {}", describe(messages));
  if (messages.empty()) bad_field("messages", "must not be empty");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Fields message(messages[i], indexed("messages", i));
    const std::string role = required_text(message, "role");
    const Json& content = message.require("content");
    if (!content.is_string() && !content.is_array()) {
      bad_field(message.at("content"), "must be a string or an array of blocks, found {}", describe(content));
    }
    if (role == "user" || role == "system") {
      if (content.is_string()) {
        out.messages.push_back({{"role", role}, {"content", content}});
      } else if (role == "user") {
        anthropic_user(content, message.at("content"), policy, out);
      } else {
        out.messages.push_back({{"role", role}, {"content", anthropic_simple_content(content, message.at("content"), policy, out)}});
      }
    } else if (role == "assistant") {
      if (content.is_string()) {
        out.messages.push_back({{"role", role}, {"content", content}});
      } else {
        anthropic_assistant(content, message.at("content"), out);
      }
    } else {
      bad_field(message.at("role"), "must be user or assistant, found \"{}\"", printable(role, 40));
    }
  }
  return out;
}

Conversation conversation_from_responses(const std::string* instructions, const Json& input, const ImagePolicy& policy) {
  Conversation out;
  if (instructions != nullptr && !instructions->empty()) {
    out.messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  if (input.is_string()) {
    out.messages.push_back({{"role", "user"}, {"content", input}});
  } else if (input.is_array()) {
    if (input.empty()) bad_field("input", "must not be empty");
    for (std::size_t i = 0; i < input.size(); ++i) responses_item(input[i], indexed("input", i), policy, out);
  } else {
    bad_field("input", "must be a string or an array of items, found {}", describe(input));
  }
  return out;
}

std::string last_user_text(const Json& messages) {
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if (message->at("role") != "user") continue;
    const Json& content = message->at("content");
    if (content.is_string()) return content.get<std::string>();
    std::string text;
    for (const Json& part : content) {
      if (part.at("type") == "text") text += part.at("text").get<std::string>();
    }
    return text;
  }
  return {};
}

Json tools_from_chat(const Json& tools) {
  Json result = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], indexed("tools", i));
    const std::string type = required_text(tool, "type");
    if (type != "function") bad_field(tool.at("type"), "must be function, found \"{}\"", printable(type, 40));
    Fields function(tool.require("function"), tool.at("function"));
    result.push_back(make_tool(function, "parameters"));
  }
  return result;
}

Json tools_from_anthropic(const Json& tools) {
  Json result = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], indexed("tools", i));
    const std::string type = tool.string("type").value_or("custom");
    if (type != "custom") bad_field(tool.at("type"), "server-side tools such as \"{}\" are not offered here", printable(type, 40));
    tool.require("input_schema");
    result.push_back(make_tool(tool, "input_schema"));
  }
  return result;
}

Json tools_from_responses(const Json& tools) {
  Json result = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], indexed("tools", i));
    const std::string type = required_text(tool, "type");
    if (type != "function") bad_field(tool.at("type"), "only function tools are offered here, found \"{}\"", printable(type, 40));
    result.push_back(make_tool(tool, "parameters"));
  }
  return result;
}

}  // namespace heirloom::server
