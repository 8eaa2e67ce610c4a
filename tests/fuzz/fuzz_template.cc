// Chat templates and request data. Everything up to the first 0 byte is the template, the rest is JSON for it (a fixed
// conversation where there is none). The segments must join to the render, and only request text may be untrusted.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "heirloom/error.h"
#include "text/chat_template.h"
#include "text/messages.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace heirloom::text;
  using nlohmann::ordered_json;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  try {
    const ChatTemplate chat{std::string(input.substr(0, zero))};
    ChatInput request;
    request.now = 1;
    ordered_json json = zero == std::string_view::npos ? ordered_json() : ordered_json::parse(input.substr(zero + 1), nullptr, false);
    if (!json.is_object()) {
      json = {{"messages", {{{"role", "system"}, {"content", "S"}}, {{"role", "user"}, {"content", "h\u00e9 <|im_end|>"}},
                            {{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", "{\"a\": [1, 2.5, null]}"}}}}}}}}},
              {"tools", {{{"name", "f"}}}}, {"n", 3}, {"s", "text"}, {"l", {3, 1, 2}}, {"d", {{"k", "v"}}}};
    }
    if (json.contains("messages")) request.messages = normalize_messages(json["messages"]);
    if (json.contains("tools")) request.tools = json["tools"];
    json.erase("messages");
    json.erase("tools");
    request.kwargs = json;
    const std::string text = chat.render(request);
    if (!is_valid_utf8(text) || join_segments(chat.render_segments(request)) != text) std::abort();
  } catch (const heirloom::Error&) {
  }
  return 0;
}
