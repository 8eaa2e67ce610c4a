// Turns a model's raw text, as it arrives, into reasoning, content and tool calls. Tolerant by design: whatever the model
// writes ends up in exactly one of the three, never in an error and never lost.
//
// Tool calls are read in the forms that models of these families produce, intended or by drift:
//   <tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>   with or without newlines, with
//     closing tags missing, several functions in one tool_call, a JSON object in place of the parameters, or without the
//     outer tag when NAME is a tool of the request
//   <tool_call>{"name": NAME, "arguments": {...}}</tool_call>                            also a list of them
// A call inside the reasoning (before </think>) counts as a call when it names a tool of the request; else it stays
// reasoning text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/tool_schema.h"

namespace heirloom::server {

struct OutputDelta {
  enum class Kind { reasoning, content, call_begin, call_arguments, call_end };
  Kind kind;
  std::string text;     // reasoning, content: text; call_begin: the function's name; call_arguments: piece of JSON
  int call_index = -1;  // of calls
  std::string call_id;  // call_begin
};

struct OutputParserOptions {
  bool starts_in_reasoning = false;  // the prompt ends with <think>
  bool split_reasoning = true;       // false: tags such as <think> are plain text (no chat template in use)
  bool read_calls = false;           // the request has tools and may use them
  ToolSchemas tools;
  std::function<std::string()> make_call_id;
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  /// Appends what `text` (whole characters) makes certain to `out`; the rest waits for more.
  void feed(std::string_view text, std::vector<OutputDelta>& out);
  /// Nothing follows. `truncated`: the model was cut off, so an unfinished call is left unfinished (its JSON incomplete)
  /// rather than closed into something that looks whole.
  void finish(bool truncated, std::vector<OutputDelta>& out);

  int calls() const { return calls_; }                       // begun
  int finished_calls() const { return finished_calls_; }
  int calls_in_reasoning() const { return calls_in_reasoning_; }
  int malformed_calls() const { return malformed_calls_; }   // text that began like a call and was passed on as text
  bool in_reasoning() const { return state_ == State::reasoning; }

 private:
  enum class State { start, reasoning, content, call_head, parameters, value, json_body, json_call, call_tail };

  bool step(bool last, bool truncated);
  bool step_start(bool last);
  bool step_text(bool last);
  bool step_call_head(bool last);
  bool step_parameters(bool last, bool truncated);
  bool step_value(bool last, bool truncated);
  bool step_json(bool last, bool truncated);
  bool step_call_tail(bool last);

  void emit_text(std::string_view text);
  void resume_text();
  void give_back_call();
  void begin_call(const std::string& name);
  void arguments(std::string json);
  void begin_parameter(std::string key);
  void value_piece(std::string_view text);
  void end_parameter(bool truncated);
  void end_call();
  bool json_complete(bool truncated);
  bool whole_json_call(const Json& call, bool emit);
  void take(std::size_t bytes);

  OutputParserOptions options_;
  std::vector<OutputDelta>* out_ = nullptr;
  State state_ = State::start;
  std::string pending_;         // not yet decided

  bool think_open_ = false;     // reasoning has begun and not ended: where text goes
  bool content_begun_ = false;  // something visible was sent as content
  bool reasoning_begun_ = false;
  bool strip_leading_ = false;  // white space before the first content is the template's, not the answer's
  std::string held_;            // white space that is dropped if nothing visible follows it

  int calls_ = 0;
  int finished_calls_ = 0;
  int calls_in_reasoning_ = 0;
  int malformed_calls_ = 0;
  std::string call_tag_;        // the text that opened the call, given back if it is none
  std::string function_;
  bool any_parameter_ = false;
  bool junk_ = false;           // text stood between this call's parameters
  JsonTypes value_types_;
  bool value_streams_ = false;  // a string argument: sent as it comes
  bool value_begun_ = false;    // the newline after the opening tag is behind us
  bool value_any_ = false;      // some of the value has been read
  std::string value_;           // held back: a newline that may be the last, or the whole value when it is not a string

  std::string json_;            // JSON call, body so far
  int json_depth_ = 0;
  bool json_in_string_ = false;
  bool json_escape_ = false;
};

}  // namespace heirloom::server
