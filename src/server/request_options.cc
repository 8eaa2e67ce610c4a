#include "server/request_options.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <random>

#include "base/printable.h"

namespace heirloom::server {
namespace {

constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();

void read_logit_bias(Fields& fields, const Engine& engine, Request& request) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  constexpr std::size_t kMost = 1024;
  if (bias->size() > kMost) bad_field("logit_bias", "has {} entries, at most {} are taken", bias->size(), kMost);
  for (const auto& [key, value] : bias->items()) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= engine.vocab_size()) {
      bad_field("logit_bias", "\"{}\" is not a token id from 0 to {}", printable(key, 40), engine.vocab_size() - 1);
    }
    if (!value.is_number() || std::fabs(value.get<double>()) > 100) {
      bad_field("logit_bias." + key, "must be a number from -100 to 100, found {}", describe(value));
    }
    request.sampling.logit_bias.emplace_back(id, value.get<float>());
  }
}

/// "... /no_think" -> "no_think"
std::string soft_switch(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  for (const std::string_view name : {"/no_think", "/think"}) {
    if (!text.ends_with(name)) continue;
    const auto before = text.size() - name.size();
    if (before == 0 || text[before - 1] == ' ' || text[before - 1] == '\n') return std::string(name.substr(1));
  }
  return {};
}

ConstraintSpec schema_spec(const Json& schema, std::string path) {
  ConstraintSpec spec;
  spec.kind = ConstraintSpec::Kind::json_schema;
  spec.schema = schema;
  spec.path = std::move(path);
  return spec;
}

ConstraintSpec text_spec(ConstraintSpec::Kind kind, std::string text, std::string path) {
  ConstraintSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  spec.path = std::move(path);
  return spec;
}

/// One of json, regex, choice, grammar; `prefix` is "guided_" or empty.
void read_guided(Fields& fields, const std::string& prefix, std::optional<ConstraintSpec>& spec) {
  const auto put = [&](ConstraintSpec found) {
    if (spec) bad_field(found.path, "only one constraint can be set, {} is set too", spec->path);
    spec = std::move(found);
  };
  const std::string json = prefix + "json";
  if (const Json* schema = fields.find(json.c_str())) {
    if (!schema->is_object() && !schema->is_boolean()) bad_field(fields.at(json), "must be a JSON schema, found {}", describe(*schema));
    put(schema_spec(*schema, fields.at(json)));
  }
  const std::string regex = prefix + "regex";
  if (auto text = fields.string(regex.c_str())) put(text_spec(ConstraintSpec::Kind::regex, std::move(*text), fields.at(regex)));
  const std::string grammar = prefix + "grammar";
  if (auto text = fields.string(grammar.c_str())) put(text_spec(ConstraintSpec::Kind::grammar, std::move(*text), fields.at(grammar)));
  const std::string choice = prefix + "choice";
  if (const Json* choices = fields.array(choice.c_str())) {
    ConstraintSpec found;
    found.kind = ConstraintSpec::Kind::choice;
    found.path = fields.at(choice);
    for (const Json& one : *choices) {
      if (!one.is_string() || one.get_ref<const std::string&>().empty()) bad_field(found.path, "must be an array of non-empty strings");
      found.choices.push_back(one.get<std::string>());
    }
    if (found.choices.empty()) bad_field(found.path, "must not be empty");
    put(std::move(found));
  }
}

}  // namespace

void read_sampling(Fields& fields, const Engine& engine, Request& request) {
  SamplingParams& sampling = request.sampling;
  sampling = engine.default_sampling();
  sampling.logit_bias.clear();
  const auto set = [&](const char* name, double low, double high, float& target) {
    if (const auto value = fields.number(name, low, high)) target = static_cast<float>(*value);
  };
  set("temperature", 0, 2, sampling.temperature);
  set("top_p", 0, 1, sampling.top_p);
  set("min_p", 0, 1, sampling.min_p);
  set("presence_penalty", -2, 2, sampling.presence_penalty);
  set("frequency_penalty", -2, 2, sampling.frequency_penalty);
  set("repetition_penalty", 0.01, 100, sampling.repetition_penalty);
  if (const auto top_k = fields.integer("top_k", -1, 1 << 30)) sampling.top_k = static_cast<int>(std::max<std::int64_t>(*top_k, 0));
  const auto seed = fields.integer("seed", std::numeric_limits<std::int64_t>::min(), kMaxInteger);
  sampling.seed = seed ? static_cast<std::uint64_t>(*seed) : random_seed();
  read_logit_bias(fields, engine, request);
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
}

std::vector<std::string> read_stop(Fields& fields, const char* name, std::size_t most) {
  std::vector<std::string> result;
  const Json* stop = fields.find(name);
  if (stop == nullptr) return result;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > most) bad_field(fields.at(name), "has {} strings, at most {} are taken", list.size(), most);
  for (const Json& one : list) {
    if (!one.is_string()) bad_field(fields.at(name), "must be a string or an array of strings, found {}", describe(one));
    if (one.get_ref<const std::string&>().empty()) bad_field(fields.at(name), "must not hold an empty string");
    result.push_back(one.get<std::string>());
  }
  return result;
}

int read_choices(Fields& fields) { return static_cast<int>(fields.integer("n", 1, 16).value_or(1)); }

Json read_template_kwargs(Fields& fields, const std::optional<std::string>& effort, const std::string& last_user_text,
                          bool by_default) {
  Json kwargs = Json::object();
  if (const Json* given = fields.object("chat_template_kwargs")) kwargs = *given;
  std::optional<bool> thinking;
  if (const auto found = kwargs.find("enable_thinking"); found != kwargs.end() && !found->is_null()) {
    if (!found->is_boolean()) bad_field("chat_template_kwargs.enable_thinking", "must be true or false, found {}", describe(*found));
    thinking = found->get<bool>();
  }
  if (const auto flag = fields.boolean("enable_thinking"); flag && !thinking) thinking = *flag;
  if (effort && !thinking) thinking = *effort != "none";
  const std::string soft = soft_switch(last_user_text);
  if (soft == "no_think") thinking = false;  // as the models were taught: it wins over an enabled template
  if (soft == "think" && !thinking) thinking = true;
  kwargs["enable_thinking"] = thinking.value_or(by_default);
  return kwargs;
}

std::optional<ConstraintSpec> read_response_format(Fields& fields, const char* name, bool flat) {
  const Json* format = fields.object(name);
  if (format == nullptr) return std::nullopt;
  Fields inner(*format, fields.at(name));
  const auto type = inner.choice("type", "text json_object json_schema");
  if (!type) bad_field(inner.at("type"), "is required");
  if (*type == "text") return std::nullopt;
  if (*type == "json_object") {
    ConstraintSpec spec;
    spec.path = inner.path();
    return spec;
  }
  if (flat) {
    inner.string("name");
    inner.boolean("strict");
    const Json* schema = inner.object("schema");
    if (schema == nullptr) bad_field(inner.at("schema"), "is required");
    return schema_spec(*schema, inner.at("schema"));
  }
  Fields wrapper(inner.require("json_schema"), inner.at("json_schema"));
  wrapper.string("name");
  wrapper.boolean("strict");
  const Json* schema = wrapper.object("schema");
  if (schema == nullptr) bad_field(wrapper.at("schema"), "is required");
  return schema_spec(*schema, wrapper.at("schema"));
}

std::optional<ConstraintSpec> read_constraint_extensions(Fields& fields) {
  std::optional<ConstraintSpec> spec;
  read_guided(fields, "guided_", spec);
  if (auto text = fields.string("grammar")) {
    if (spec) bad_field("grammar", "only one constraint can be set, {} is set too", spec->path);
    spec = text_spec(ConstraintSpec::Kind::grammar, std::move(*text), "grammar");
  }
  if (const Json* structured = fields.object("structured_outputs")) {
    Fields inner(*structured, "structured_outputs");
    if (inner.boolean("json_object").value_or(false)) {
      if (spec) bad_field("structured_outputs", "only one constraint can be set, {} is set too", spec->path);
      spec.emplace();
      spec->path = "structured_outputs.json_object";
    }
    read_guided(inner, "", spec);
    if (!spec) bad_field("structured_outputs", "must hold one of json, json_object, regex, choice, grammar");
  }
  return spec;
}

ToolUse make_tool_use(Json tools, ToolChoice choice, const std::string& name, bool one_call, CallStyle style) {
  ToolUse use;
  if (!tools.is_array() || tools.empty() || choice == ToolChoice::none) return use;
  use.read_calls = true;
  use.one_call = one_call;
  Json callable = Json::array();
  bool strict = false;
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    if (function.value("strict", false)) strict = true;
    if (choice != ToolChoice::named || function.at("name") == name) callable.push_back(tool);
  }
  if (choice == ToolChoice::named && callable.empty()) bad_field("tool_choice", "names \"{}\", which is not among tools", printable(name, 60));
  if (choice != ToolChoice::automatic || strict) {
    use.constraint.emplace();
    use.constraint->kind = ConstraintSpec::Kind::tool_calls;
    use.constraint->tools = std::move(callable);
    use.constraint->must_call = choice != ToolChoice::automatic;
    // A named function is called once, as OpenAI does it.
    use.constraint->one_call = one_call || choice == ToolChoice::named;
    use.constraint->style = style;
    use.constraint->path = "tools";
  }
  for (Json& tool : tools) tool["function"].erase("strict");  // no part of what the model reads
  use.tools = std::move(tools);
  return use;
}

std::pair<ToolChoice, std::string> read_tool_choice(Fields& fields, bool have_tools) {
  const Json* value = fields.find("tool_choice");
  if (value == nullptr) return {ToolChoice::automatic, ""};
  std::pair<ToolChoice, std::string> result{ToolChoice::automatic, ""};
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (text == "none") {
      result.first = ToolChoice::none;
    } else if (text == "required") {
      result.first = ToolChoice::required;
    } else if (text != "auto") {
      bad_field("tool_choice", "must be auto, none, required or an object naming a function, found \"{}\"", printable(text, 40));
    }
  } else {
    Fields inner(*value, "tool_choice");
    const auto type = inner.choice("type", "function");
    if (!type) bad_field("tool_choice.type", "is required");
    auto name = inner.string("name");
    if (!name) {
      Fields function(inner.require("function"), "tool_choice.function");
      name = function.string("name");
    }
    if (!name) bad_field("tool_choice.function.name", "is required");
    result = {ToolChoice::named, *name};
  }
  if (!have_tools && (result.first == ToolChoice::required || result.first == ToolChoice::named)) {
    bad_field("tool_choice", "asks for a call, but there are no tools");
  }
  return result;
}

ApiError submit_error(const Error& error) {
  ApiError result = to_api_error(error);
  if (error.kind() == ErrorKind::does_not_fit) {
    result.param = "messages";
    result.code = "context_length_exceeded";
  }
  return result;
}

ApiError run_error(const RequestResult& result) {
  if (!result.error) return ApiError(503, "the request was cancelled by the server");
  ApiError error = to_api_error(*result.error);
  // The request was admitted: that memory ran out now is not its fault.
  if (result.error->kind() == ErrorKind::does_not_fit) error.status = 503;
  return error;
}

std::uint64_t random_seed() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    return (static_cast<std::uint64_t>(device()) << 32) ^ device();
  }()};
  return generator() >> 1;
}

std::string random_id(std::string_view prefix) {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string out(prefix);
  for (int i = 0; i < 24; ++i) out += kLetters[random_seed() % kLetters.size()];
  return out;
}

std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace heirloom::server
