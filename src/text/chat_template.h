// A chat template: messages to prompt, as `transformers` renders it. Bounded in time and memory whatever the template and
// the messages are.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_segment.h"

namespace heirloom::text {

namespace jinja {
struct Template;
}

struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;                                  // an array; null: none
  bool add_generation_prompt = true;
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();  // enable_thinking, preserve_thinking, documents, ...
  std::string bos_token, eos_token, pad_token;                   // texts of the special tokens; empty: not defined
  std::time_t now = 0;                                           // for templates that print the date; 0: the clock
};

class ChatTemplate {
 public:
  /// Parses the template. Throws Error{bad_file} naming the line.
  explicit ChatTemplate(std::string source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// The prompt. The messages are taken as they are: call normalize_messages (text/messages.h) first for what clients
  /// send. Throws Error{usage} where the template raises or the data does not fit it. Thread-safe.
  std::string render(const ChatInput& input) const;

  /// The same prompt as segments: what the template wrote is trusted, what came from messages, tools and kwargs is not.
  /// Neighbours differ in trust. For Tokenizer::encode_segments.
  std::vector<PromptSegment> render_segments(const ChatInput& input) const;

  const std::string& source() const noexcept { return source_; }

  /// Whether the template reads a variable of this name ("enable_thinking", "tools").
  bool mentions(std::string_view variable) const;

 private:
  std::string source_;
  std::unique_ptr<const jinja::Template> template_;
};

}  // namespace heirloom::text
