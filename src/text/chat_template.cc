#include "text/chat_template.h"

#include <algorithm>

#include "base/check.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json_value.h"

namespace heirloom::text {
namespace {

constexpr std::size_t kMaxSourceBytes = std::size_t{4} << 20;  // published templates have 1 to 30 KiB

jinja::Text render_text(const jinja::Template& source, const ChatInput& input) {
  using jinja::Value;
  std::vector<std::pair<std::string, Value>> variables;
  std::size_t bytes = 0;
  if (!input.messages.is_array()) fail(ErrorKind::usage, "messages is not a list");
  variables.emplace_back("messages", jinja::from_json(input.messages, bytes));
  variables.emplace_back("tools", jinja::from_json(input.tools, bytes));
  variables.emplace_back("documents", jinja::None{});
  variables.emplace_back("add_generation_prompt", Value(input.add_generation_prompt));
  const auto define_token = [&](const char* name, const std::string& text) {
    if (!text.empty()) variables.emplace_back(name, Value(jinja::Text(text)));
  };
  define_token("bos_token", input.bos_token);
  define_token("eos_token", input.eos_token);
  define_token("pad_token", input.pad_token);
  if (input.kwargs.is_object()) {
    for (const auto& [name, value] : input.kwargs.items()) variables.emplace_back(name, jinja::from_json(value, bytes));
  } else if (!input.kwargs.is_null()) {
    fail(ErrorKind::usage, "the chat template's arguments are not an object");
  }
  jinja::Budget budget(bytes);
  jinja::Interpreter interpreter(source, budget, input.now ? input.now : std::time(nullptr));
  return interpreter.render(variables);
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source) : source_(std::move(source)) {
  if (source_.size() > kMaxSourceBytes) {
    fail(ErrorKind::bad_file, "the chat template has {} bytes, at most {} are supported", source_.size(), kMaxSourceBytes);
  }
  template_ = std::make_unique<const jinja::Template>(jinja::parse_template(source_));
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const ChatInput& input) const { return render_text(*template_, input).str(); }

std::vector<PromptSegment> ChatTemplate::render_segments(const ChatInput& input) const {
  const jinja::Text text = render_text(*template_, input);
  std::vector<PromptSegment> segments;
  std::size_t at = 0;
  const auto add = [&](std::size_t end, bool trusted) {
    if (end > at) segments.push_back({text.str().substr(at, end - at), trusted});
    at = end;
  };
  for (const auto& range : text.tainted()) {
    add(range.begin, true);
    add(range.end, false);
  }
  add(text.size(), true);
  return segments;
}

bool ChatTemplate::mentions(std::string_view variable) const {
  return std::find(template_->names.begin(), template_->names.end(), variable) != template_->names.end();
}

}  // namespace heirloom::text
