#include "server/output_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json.h"

namespace heirloom::server {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionNamed = "<function name=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterNamed = "<parameter name=";
constexpr std::string_view kParameterEnd = "</parameter>";

constexpr std::size_t kMaxName = 256;  // longer "names" are text that happens to look like a tag
constexpr int kJsonDepth = 128;

bool blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::size_t count_leading_blanks(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && blank(text[n])) ++n;
  return n;
}

/// `text` is the beginning of `tag`, but not all of it.
bool is_proper_prefix(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

/// Length of the longest end of `text` that may be the beginning of one of `tags`.
template <typename Tags>
std::size_t held_suffix(std::string_view text, const Tags& tags) {
  std::size_t longest = 0;
  for (const std::string_view tag : tags) {
    for (std::size_t n = std::min(tag.size() - 1, text.size()); n > longest; --n) {
      if (tag.starts_with(text.substr(text.size() - n))) {
        longest = n;
        break;
      }
    }
  }
  return longest;
}

/// `ls`, `"ls"`, ` ls ` -> ls
std::string clean_name(std::string_view text) {
  const auto dirt = [](char c) { return blank(c) || c == '"' || c == '\''; };
  while (!text.empty() && dirt(text.front())) text.remove_prefix(1);
  while (!text.empty() && dirt(text.back())) text.remove_suffix(1);
  return std::string(text);
}

}  // namespace

OutputParser::OutputParser(OutputParserOptions options) : options_(std::move(options)) {
  think_open_ = options_.split_reasoning && options_.starts_in_reasoning;
  if (!options_.split_reasoning) state_ = State::content;
}

void OutputParser::feed(std::string_view text, std::vector<OutputDelta>& out) {
  out_ = &out;
  pending_ += text;
  while (step(false, false)) {
  }
}

void OutputParser::finish(bool truncated, std::vector<OutputDelta>& out) {
  out_ = &out;
  while (step(true, truncated)) {
  }
  // White space at the very end belongs to the answer unless a call or nothing but reasoning was the answer.
  if (!think_open_ && calls_ == 0 && !held_.empty() && !(strip_leading_ && !content_begun_)) {
    out_->push_back({OutputDelta::Kind::content, std::exchange(held_, {}), -1, {}});
  }
}

bool OutputParser::step(bool last, bool truncated) {
  switch (state_) {
    case State::start: return step_start(last);
    case State::reasoning:
    case State::content: return step_text(last);
    case State::call_head: return step_call_head(last);
    case State::parameters: return step_parameters(last, truncated);
    case State::value: return step_value(last, truncated);
    case State::json_body:
    case State::json_call: return step_json(last, truncated);
    case State::call_tail: return step_call_tail(last);
  }
  return false;
}

void OutputParser::take(std::size_t bytes) { pending_.erase(0, bytes); }

// ---- reasoning and content ------------------------------------------------------------------------------------------

bool OutputParser::step_start(bool last) {
  const std::size_t blanks = count_leading_blanks(pending_);
  const std::string_view rest = std::string_view(pending_).substr(blanks);
  if (!last && (rest.empty() || is_proper_prefix(rest, kThink) || is_proper_prefix(rest, kThinkEnd))) return false;
  if (rest.starts_with(kThink)) {
    take(blanks + kThink.size());
    think_open_ = true;
  } else if (!think_open_ && rest.starts_with(kThinkEnd)) {
    take(blanks + kThinkEnd.size());  // closes a block that the prompt had closed already
    strip_leading_ = true;
  }
  resume_text();
  return true;
}

void OutputParser::resume_text() { state_ = think_open_ ? State::reasoning : State::content; }

void OutputParser::emit_text(std::string_view text) {
  std::string whole = std::exchange(held_, {});
  whole += text;
  bool& begun = think_open_ ? reasoning_begun_ : content_begun_;
  if (!begun && (think_open_ || strip_leading_)) whole.erase(0, count_leading_blanks(whole));
  std::size_t visible = whole.size();
  while (visible > 0 && blank(whole[visible - 1])) --visible;
  held_ = whole.substr(visible);
  whole.resize(visible);
  if (whole.empty()) return;
  begun = true;
  out_->push_back({think_open_ ? OutputDelta::Kind::reasoning : OutputDelta::Kind::content, std::move(whole), -1, {}});
}

bool OutputParser::step_text(bool last) {
  if (pending_.empty()) return false;
  std::array<std::string_view, 3> tags{};
  std::size_t count = 0;
  if (think_open_) tags[count++] = kThinkEnd;
  if (options_.read_calls) tags[count++] = kCall;
  // Without the outer tag a call counts only in the answer and at the beginning of a line.
  if (options_.read_calls && !think_open_) tags[count++] = kFunction;
  const std::span<const std::string_view> active(tags.data(), count);

  std::size_t at = std::string::npos;
  std::string_view found;
  for (const auto tag : active) {
    const auto position = pending_.find(tag);
    if (position < at) {
      at = position;
      found = tag;
    }
  }
  if (at == std::string::npos) {
    const std::size_t hold = last ? 0 : held_suffix(pending_, active);
    const std::size_t ready = pending_.size() - hold;
    if (ready == 0) return false;
    emit_text(std::string_view(pending_).substr(0, ready));
    take(ready);
    return false;
  }
  if (at > 0) {
    emit_text(std::string_view(pending_).substr(0, at));
    take(at);
  }
  if (found == kThinkEnd) {
    take(kThinkEnd.size());
    held_.clear();
    think_open_ = false;
    strip_leading_ = true;
    state_ = State::content;
    return true;
  }
  if (found == kCall) {
    call_tag_ = kCall;
    take(kCall.size());
    state_ = State::call_head;
    return true;
  }
  const bool line_start = !content_begun_ || held_.find('\n') != std::string::npos;
  const auto end = pending_.find_first_of(">\n");
  if (end == std::string::npos && !last && pending_.size() < kMaxName) return false;
  if (line_start && end != std::string::npos &&
      options_.tools.has(clean_name(std::string_view(pending_).substr(kFunction.size(), end - kFunction.size())))) {
    call_tag_.clear();
    state_ = State::call_head;
    return true;
  }
  emit_text(kFunction);
  take(kFunction.size());
  return true;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

void OutputParser::give_back_call() {
  ++malformed_calls_;
  emit_text(std::exchange(call_tag_, {}));
  resume_text();
}

bool OutputParser::step_call_head(bool last) {
  const std::size_t blanks = count_leading_blanks(pending_);
  call_tag_ += pending_.substr(0, blanks);
  take(blanks);
  const bool more_may_come = !last && pending_.size() < kMaxName;
  if (pending_.empty() || is_proper_prefix(pending_, kFunction) || is_proper_prefix(pending_, kFunctionNamed)) {
    if (more_may_come) return false;
    give_back_call();
    return true;
  }
  for (const auto tag : {kFunction, kFunctionNamed}) {
    if (!pending_.starts_with(tag)) continue;
    const auto end = pending_.find_first_of(">\n", tag.size());
    if (end == std::string::npos && more_may_come) return false;
    const std::string name = end == std::string::npos ? "" : clean_name(std::string_view(pending_).substr(tag.size(), end - tag.size()));
    if (name.empty() || name.size() > kMaxName || (think_open_ && !options_.tools.has(name))) {
      give_back_call();
      return true;
    }
    take(end + 1);
    begin_call(name);
    state_ = State::parameters;
    return true;
  }
  if (pending_[0] == '{' || pending_[0] == '[') {
    json_.clear();
    json_depth_ = 0;
    json_in_string_ = json_escape_ = false;
    state_ = State::json_call;
    return true;
  }
  give_back_call();
  return true;
}

void OutputParser::begin_call(const std::string& name) {
  held_.clear();
  function_ = name;
  any_parameter_ = junk_ = false;
  if (think_open_) ++calls_in_reasoning_;
  out_->push_back({OutputDelta::Kind::call_begin, name, calls_++, options_.make_call_id ? options_.make_call_id() : ""});
}

void OutputParser::arguments(std::string json) {
  if (!json.empty()) out_->push_back({OutputDelta::Kind::call_arguments, std::move(json), calls_ - 1, {}});
}

void OutputParser::end_call() {
  arguments(any_parameter_ ? "}" : "{}");
  out_->push_back({OutputDelta::Kind::call_end, {}, calls_ - 1, {}});
  ++finished_calls_;
}

bool OutputParser::step_parameters(bool last, bool truncated) {
  const std::size_t blanks = count_leading_blanks(pending_);
  if (junk_) held_ += pending_.substr(0, blanks);
  take(blanks);
  if (pending_.empty()) {
    if (last && !truncated) end_call();
    if (last) resume_text();
    return false;
  }
  constexpr std::array tags{kParameter, kParameterNamed, kFunctionEnd, kCallEnd, kCall, kFunction, kThinkEnd};
  if (!last && pending_.size() < kMaxName &&
      std::any_of(tags.begin(), tags.end(), [&](auto tag) { return is_proper_prefix(pending_, tag); })) {
    return false;
  }
  for (const auto tag : {kParameter, kParameterNamed}) {
    if (!pending_.starts_with(tag)) continue;
    const auto end = pending_.find_first_of(">\n", tag.size());
    if (end == std::string::npos) {
      if (!last && pending_.size() < kMaxName) return false;
      break;
    }
    std::string key = clean_name(std::string_view(pending_).substr(tag.size(), end - tag.size()));
    take(end + 1);
    begin_parameter(std::move(key));
    state_ = State::value;
    return true;
  }
  if (pending_.starts_with(kFunctionEnd)) {
    take(kFunctionEnd.size());
    end_call();
    state_ = State::call_tail;
    return true;
  }
  if (pending_.starts_with(kCallEnd) || pending_.starts_with(kCall) || pending_.starts_with(kFunction)) {
    end_call();  // its own closing tag is missing
    state_ = State::call_tail;
    return true;
  }
  if (pending_.starts_with(kThinkEnd)) {
    take(kThinkEnd.size());
    think_open_ = false;
    strip_leading_ = true;
    return true;
  }
  if (pending_[0] == '{' && !any_parameter_) {
    json_.clear();
    json_depth_ = 0;
    json_in_string_ = json_escape_ = false;
    state_ = State::json_body;
    return true;
  }
  // Anything else between parameters is no part of the call and is passed on as text.
  auto next = pending_.find('<', 1);
  if (next == std::string::npos) next = pending_.size();
  emit_text(std::string_view(pending_).substr(0, next));
  junk_ = true;
  take(next);
  return true;
}

void OutputParser::begin_parameter(std::string key) {
  value_types_ = options_.tools.types(function_, key);
  value_streams_ = value_types_.empty() || value_types_.only_string();
  value_begun_ = value_any_ = false;
  value_.clear();
  std::string json = any_parameter_ ? ", \"" : "{\"";
  json += json_escape(key);
  json += "\": ";
  if (value_streams_) json += '"';
  any_parameter_ = true;
  arguments(std::move(json));
}

bool OutputParser::step_value(bool last, bool truncated) {
  if (!value_begun_) {
    if (!last && (pending_.empty() || pending_ == "\r")) return false;
    take(pending_.starts_with("\r\n") ? 2 : pending_.starts_with('\n') ? 1 : 0);
    value_begun_ = true;
  }
  bool line_start = value_.empty() ? !value_any_ : value_.back() == '\n';
  std::size_t from = 0;
  for (;;) {
    const auto at = pending_.find('<', from);
    if (at == std::string::npos) break;
    if (at > 0) line_start = pending_[at - 1] == '\n';
    const std::string_view rest = std::string_view(pending_).substr(at);
    bool ends = rest.starts_with(kCallEnd) || (line_start && (rest.starts_with(kParameter) || rest.starts_with(kFunctionEnd)));
    bool wait = false;
    std::size_t skip = 0;
    if (rest.starts_with(kParameterEnd)) {
      ends = true;
      skip = kParameterEnd.size();
    } else if (!ends && rest.starts_with(kFunctionEnd)) {
      // In the middle of a line it ends the value only where the call visibly ends too.
      std::string_view after = rest.substr(kFunctionEnd.size());
      after.remove_prefix(count_leading_blanks(after));
      ends = after.starts_with(kCallEnd) || (after.empty() && last);
      wait = !ends && !last && (after.empty() || is_proper_prefix(after, kCallEnd));
    } else if (!ends && !last) {
      wait = is_proper_prefix(rest, kParameterEnd) || is_proper_prefix(rest, kFunctionEnd) ||
             is_proper_prefix(rest, kCallEnd) || (line_start && is_proper_prefix(rest, kParameter));
    }
    if (ends) {
      value_piece(std::string_view(pending_).substr(0, at));
      take(at + skip);
      end_parameter(false);
      state_ = State::parameters;
      return true;
    }
    if (wait) {
      value_piece(std::string_view(pending_).substr(0, at));
      take(at);
      return false;
    }
    from = at + 1;
  }
  value_piece(pending_);
  pending_.clear();
  if (!last) return false;
  end_parameter(truncated);
  if (!truncated) end_call();
  resume_text();
  return true;
}

void OutputParser::value_piece(std::string_view text) {
  if (text.empty()) return;
  value_any_ = true;
  value_ += text;
  if (!value_streams_) return;
  // A newline at the end may be the one before the closing tag.
  std::size_t ready = value_.size();
  if (value_.ends_with("\r\n")) {
    ready -= 2;
  } else if (value_.ends_with('\n') || value_.ends_with('\r')) {
    ready -= 1;
  }
  arguments(json_escape(std::string_view(value_).substr(0, ready)));
  value_.erase(0, ready);
}

void OutputParser::end_parameter(bool truncated) {
  if (truncated) return;
  if (value_.ends_with("\r\n")) {
    value_.resize(value_.size() - 2);
  } else if (value_.ends_with('\n')) {
    value_.pop_back();
  }
  arguments(value_streams_ ? json_escape(value_) + '"' : argument_json(value_, value_types_));
  value_.clear();
}

bool OutputParser::step_call_tail(bool last) {
  const std::size_t blanks = count_leading_blanks(pending_);
  if (content_begun_ && !think_open_) held_ += pending_.substr(0, blanks);  // shown only if more text follows
  take(blanks);
  if (pending_.empty()) return false;
  if (pending_.starts_with(kCallEnd) || pending_.starts_with(kFunctionEnd)) {
    const bool call_over = pending_.starts_with(kCallEnd);
    take(call_over ? kCallEnd.size() : kFunctionEnd.size());
    if (call_over) {
      held_.clear();
      resume_text();
    }
    return true;
  }
  if (pending_.starts_with(kFunction)) {
    call_tag_.clear();
    state_ = State::call_head;
    return true;
  }
  if (!last && (is_proper_prefix(pending_, kCallEnd) || is_proper_prefix(pending_, kFunctionEnd) ||
                is_proper_prefix(pending_, kFunction))) {
    return false;
  }
  resume_text();
  return true;
}

// ---- JSON in place of XML -------------------------------------------------------------------------------------------

bool OutputParser::step_json(bool last, bool truncated) {
  bool closed = false;
  bool broken = false;
  std::size_t used = 0;
  while (used < pending_.size() && !closed && !broken) {
    const char c = pending_[used];
    if (json_in_string_) {
      if (json_escape_) {
        json_escape_ = false;
      } else if (c == '\\') {
        json_escape_ = true;
      } else if (c == '"') {
        json_in_string_ = false;
      }
    } else if (c == '"') {
      json_in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++json_depth_;
    } else if (c == '}' || c == ']') {
      closed = --json_depth_ <= 0;
    } else if (c == '<') {
      broken = true;  // a tag: the object was never closed
      break;
    }
    ++used;
  }
  json_ += pending_.substr(0, used);
  take(used);
  if (!closed && !broken && !last) return false;
  return json_complete(truncated && last && !closed && !broken);
}

bool OutputParser::json_complete(bool truncated) {
  const bool whole_call = state_ == State::json_call;
  if (truncated && !whole_call) {
    arguments(std::exchange(json_, {}));
    resume_text();
    return true;
  }
  Json parsed;
  if (!truncated) {
    // A closing brace or two is what small models forget.
    for (const std::string_view repair : {"", "}", "}}"}) {
      try {
        parsed = parse_json(json_ + std::string(repair), "call", ErrorKind::usage, kJsonDepth);
        break;
      } catch (const Error&) {
        parsed = Json();
      }
    }
  }
  if (whole_call) {
    bool good = false;
    if (parsed.is_object()) good = whole_json_call(parsed, true);
    if (parsed.is_array()) {
      good = !parsed.empty() && std::all_of(parsed.begin(), parsed.end(), [&](const Json& one) { return whole_json_call(one, false); });
      if (good) {
        for (const Json& one : parsed) whole_json_call(one, true);
      }
    }
    if (!good) {
      call_tag_ += std::exchange(json_, {});
      give_back_call();
      return true;
    }
  } else if (parsed.is_object()) {
    arguments(parsed.dump());
    out_->push_back({OutputDelta::Kind::call_end, {}, calls_ - 1, {}});
    ++finished_calls_;
  } else {
    ++malformed_calls_;
    emit_text(std::exchange(json_, {}));
    end_call();
  }
  json_.clear();
  state_ = State::call_tail;
  return true;
}

/// One {"name", "arguments"} object; with `emit` false only says whether it is one.
bool OutputParser::whole_json_call(const Json& call, bool emit) {
  if (!call.is_object()) return false;
  const auto name = call.find("name");
  if (name == call.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) return false;
  if (think_open_ && !options_.tools.has(name->get_ref<const std::string&>())) return false;
  auto body = call.find("arguments");
  if (body == call.end()) body = call.find("parameters");
  std::string json = "{}";
  if (body != call.end() && body->is_object()) json = body->dump();
  if (body != call.end() && body->is_string()) json = body->get<std::string>();  // encoded twice
  if (body != call.end() && !body->is_object() && !body->is_string() && !body->is_null()) return false;
  if (!emit) return true;
  begin_call(name->get<std::string>());
  arguments(std::move(json));
  out_->push_back({OutputDelta::Kind::call_end, {}, calls_ - 1, {}});
  ++finished_calls_;
  return true;
}

}  // namespace heirloom::server
