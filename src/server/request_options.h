// Request fields that several APIs share, read into the engine's Request.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/constraints.h"
#include "server/fields.h"

namespace heirloom::server {

/// temperature, top_p, top_k, min_p, penalties, seed, logit_bias, ignore_eos over the model's defaults.
void read_sampling(Fields& fields, const Engine& engine, Request& request);
/// `stop` as OpenAI has it: null, a string, or up to four non-empty strings.
std::vector<std::string> read_stop(Fields& fields, const char* name, std::size_t most);
/// `n` choices, 1 to 16.
int read_choices(Fields& fields);

/// chat_template_kwargs, enable_thinking, reasoning_effort and the switches /think and /no_think at the end of the last user
/// message, in this order of precedence; else `by_default`. The result always has "enable_thinking".
Json read_template_kwargs(Fields& fields, const std::optional<std::string>& effort, const std::string& last_user_text,
                          bool by_default);

/// response_format (as OpenAI's chat API or, `flat`, as the Responses API's text.format has it) and the extensions
/// `grammar`, `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`, `structured_outputs`.
std::optional<ConstraintSpec> read_response_format(Fields& fields, const char* name, bool flat);
std::optional<ConstraintSpec> read_constraint_extensions(Fields& fields);

/// How tools may be used.
struct ToolUse {
  Json tools;                // those the model is told of; null if none
  bool read_calls = false;
  bool one_call = false;
  std::optional<ConstraintSpec> constraint;  // required, named or strict
};
enum class ToolChoice { automatic, none, required, named };
ToolUse make_tool_use(Json tools, ToolChoice choice, const std::string& name, bool one_call, CallStyle style);
/// `tool_choice` of the chat and Responses APIs: "auto", "none", "required", or an object naming a function.
std::pair<ToolChoice, std::string> read_tool_choice(Fields& fields, bool have_tools);

/// What a refused submit means to the client: the engine's does_not_fit is `context_length_exceeded`, its message has both
/// numbers.
ApiError submit_error(const Error& error);
/// What an admitted request's end without an answer (finish_reason error or cancelled) means to the client.
ApiError run_error(const RequestResult& result);

/// "prefix" + 24 random letters and digits.
std::string random_id(std::string_view prefix);
std::uint64_t random_seed();
std::int64_t unix_time();

}  // namespace heirloom::server
