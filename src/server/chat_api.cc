// POST /v1/chat/completions.
#include "base/log.h"
#include "server/api_context.h"
#include "server/conversation.h"
#include "server/logprobs.h"

namespace heirloom::server {
namespace {

struct ChatOptions {
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
};

class ChatListener final : public GenerationListener {
 public:
  ChatListener(ApiContext& api, ChatOptions options, int choices, std::shared_ptr<HttpResponder> responder)
      : api_(api),
        options_(options),
        responder_(std::move(responder)),
        id_(random_id("chatcmpl-")),
        created_(unix_time()),
        model_(api.engine.model_name()),
        answers_(static_cast<std::size_t>(choices)) {}

  void on_start() override {
    if (!options_.stream) return;
    responder_->begin_stream(200, stream_headers());
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      send(choice_chunk(static_cast<int>(i), {{"role", "assistant"}, {"content", ""}}, nullptr));
    }
  }

  void on_deltas(int choice, std::vector<OutputDelta> deltas, std::vector<TokenEvent> tokens) override {
    Answer& answer = answers_[static_cast<std::size_t>(choice)];
    if (options_.logprobs) {
      for (Json& entry : chat_logprobs(api_.engine, tokens)) answer.logprobs.push_back(std::move(entry));
    }
    for (const OutputDelta& delta : deltas) {
      if (!options_.stream) {
        answer.text.add(delta);
        continue;
      }
      if (!options_.logprobs && send_text(choice, delta)) continue;
      Json body = delta_json(delta);
      if (body.is_null()) continue;
      send(choice_chunk(choice, std::move(body), &answer));
    }
  }

  void on_choice_end(int choice, ChoiceEnd end) override {
    Answer& answer = answers_[static_cast<std::size_t>(choice)];
    prompt_tokens_ = end.result.prompt_tokens;
    cached_tokens_ = std::max(cached_tokens_, end.result.cached_tokens);
    completion_tokens_ += static_cast<std::int64_t>(end.result.token_ids.size());
    if (end.result.finish_reason == FinishReason::error || end.result.finish_reason == FinishReason::cancelled) {
      error_ = run_error(end.result);
      if (options_.stream) send_event(dump(error_body(*error_, ErrorStyle::openai)));
      return;
    }
    answer.finish_reason = openai_finish_reason(end);
    if (options_.stream) {
      Json chunk = choice_chunk(choice, Json::object(), &answer);
      chunk["choices"][0]["finish_reason"] = answer.finish_reason;
      send(std::move(chunk));
    }
    log::debug("chat {}: {} prompt tokens ({} cached), {} generated, {}", id_, end.result.prompt_tokens, end.result.cached_tokens,
               end.result.token_ids.size(), answer.finish_reason);
  }

  void on_end() override {
    if (!options_.stream) return respond();
    if (!error_) {
      if (options_.include_usage) {
        Json chunk = envelope("chat.completion.chunk");
        chunk["choices"] = Json::array();
        chunk["usage"] = openai_usage(prompt_tokens_, cached_tokens_, completion_tokens_);
        send_event(dump(chunk));
      }
      send_event("[DONE]");
    }
    responder_->end_stream();
  }

 private:
  /// The event of a piece of text around the text itself.
  struct TextEvent {
    std::string before, after;
  };
  struct Answer {
    TextEvent content, reasoning;     // streamed; empty until needed
    GatheredAnswer text;              // not streamed
    Json logprobs = Json::array();    // streamed: not sent yet
    std::string finish_reason;
  };

  Json envelope(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}, {"system_fingerprint", "heirloom-" HEIRLOOM_VERSION}};
  }

  /// A chunk with one choice; takes the log probabilities that wait in `answer`.
  Json choice_chunk(int choice, Json delta, Answer* answer) {
    Json chunk = envelope("chat.completion.chunk");
    Json logprobs;
    if (options_.logprobs && answer != nullptr && !answer->logprobs.empty()) {
      logprobs = {{"content", std::exchange(answer->logprobs, Json::array())}, {"refusal", nullptr}};
    }
    chunk["choices"] = Json::array(
        {{{"index", choice}, {"delta", std::move(delta)}, {"logprobs", std::move(logprobs)}, {"finish_reason", nullptr}}});
    if (options_.include_usage) chunk["usage"] = nullptr;
    return chunk;
  }

  /// Text deltas, one a token and stream, are not built anew: only the text changes. False: `delta` is something else.
  bool send_text(int choice, const OutputDelta& delta) {
    const bool content = delta.kind == OutputDelta::Kind::content;
    if (!content && delta.kind != OutputDelta::Kind::reasoning) return false;
    Answer& answer = answers_[static_cast<std::size_t>(choice)];
    TextEvent& event = content ? answer.content : answer.reasoning;
    if (event.before.empty()) {
      const std::string key = content ? "\"content\":" : "\"reasoning_content\":", text = "\"\\u0001\"";
      const std::string chunk = dump(choice_chunk(choice, delta_json({delta.kind, "\x01", -1, {}}), nullptr));
      const std::size_t at = chunk.find(key + text) + key.size();
      event = {"data: " + chunk.substr(0, at), chunk.substr(at + text.size()) + "\n\n"};
    }
    responder_->write(event.before + dump(delta.text) + event.after);
    return true;
  }

  static Json delta_json(const OutputDelta& delta) {
    switch (delta.kind) {
      case OutputDelta::Kind::reasoning: return {{"reasoning_content", delta.text}};
      case OutputDelta::Kind::content: return {{"content", delta.text}};
      case OutputDelta::Kind::call_begin:
        return {{"tool_calls", Json::array({{{"index", delta.call_index},
                                             {"id", delta.call_id},
                                             {"type", "function"},
                                             {"function", {{"name", delta.text}, {"arguments", ""}}}}})}};
      case OutputDelta::Kind::call_arguments:
        return {{"tool_calls", Json::array({{{"index", delta.call_index}, {"function", {{"arguments", delta.text}}}}})}};
      case OutputDelta::Kind::call_end: return nullptr;
    }
    return nullptr;
  }

  void send(const Json& chunk) { send_event(dump(chunk)); }
  void send_event(const std::string& data) { responder_->write("data: " + data + "\n\n"); }

  void respond() {
    if (error_) return responder_->respond(error_response(*error_, ErrorStyle::openai));
    Json body = envelope("chat.completion");
    body["choices"] = Json::array();
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      Answer& answer = answers_[i];
      Json message{{"role", "assistant"}, {"content", nullptr}, {"refusal", nullptr}};
      if (!answer.text.content.empty() || answer.text.calls.empty()) message["content"] = answer.text.content;
      if (!answer.text.reasoning.empty()) message["reasoning_content"] = answer.text.reasoning;
      if (!answer.text.calls.empty()) {
        Json calls = Json::array();
        for (const GatheredCall& call : answer.text.calls) {
          calls.push_back({{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
        }
        message["tool_calls"] = std::move(calls);
      }
      Json logprobs;
      if (options_.logprobs) logprobs = {{"content", std::move(answer.logprobs)}, {"refusal", nullptr}};
      body["choices"].push_back({{"index", i},
                                 {"message", std::move(message)},
                                 {"logprobs", std::move(logprobs)},
                                 {"finish_reason", answer.finish_reason}});
    }
    body["usage"] = openai_usage(prompt_tokens_, cached_tokens_, completion_tokens_);
    responder_->respond({200, {{"Content-Type", "application/json"}}, dump(body)});
  }

  ApiContext& api_;
  ChatOptions options_;
  std::shared_ptr<HttpResponder> responder_;
  std::string id_;
  std::int64_t created_;
  std::string model_;
  std::vector<Answer> answers_;
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
  std::optional<ApiError> error_;
};

int read_max_tokens(Fields& fields) {
  constexpr std::int64_t kMost = 1 << 30;
  const auto older = fields.integer("max_tokens", 1, kMost);
  const auto newer = fields.integer("max_completion_tokens", 1, kMost);
  return static_cast<int>(newer ? *newer : older.value_or(0));
}

}  // namespace

void chat_completions(ApiContext& api, const HttpRequest& http, const std::shared_ptr<HttpResponder>& responder) {
  const Json body = parse_body(http);
  Fields fields(body, "");
  fields.string("model");
  ConversationSpec spec;
  Conversation conversation = conversation_from_chat(fields.require("messages"), api.image_policy());

  ChatOptions options;
  options.stream = fields.boolean("stream").value_or(false);
  if (const Json* stream_options = fields.object("stream_options")) {
    if (!options.stream) bad_field("stream_options", "is only allowed when stream is true");
    Fields inner(*stream_options, "stream_options");
    options.include_usage = inner.boolean("include_usage").value_or(false);
  }
  options.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top_logprobs = fields.integer("top_logprobs", 0, 20);
  if (top_logprobs && !options.logprobs) bad_field("top_logprobs", "is only allowed when logprobs is true");

  read_sampling(fields, api.engine, spec.request);
  spec.request.max_tokens = read_max_tokens(fields);
  spec.request.stop = read_stop(fields, "stop", 4);
  if (options.logprobs) spec.request.top_logprobs = static_cast<int>(top_logprobs.value_or(0));
  spec.choices = read_choices(fields);
  const auto effort = fields.choice("reasoning_effort", "none minimal low medium high xhigh max");
  spec.request.template_kwargs = read_template_kwargs(fields, effort, last_user_text(conversation.messages), api.options.think);

  const Json* tools = fields.array("tools");
  const auto [choice, name] = read_tool_choice(fields, tools != nullptr && !tools->empty());
  const bool one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  if (tools != nullptr && !tools->empty()) {
    spec.tools = make_tool_use(tools_from_chat(*tools), choice, name, one_call, api.traits.call_style());
  }
  spec.constraint = read_response_format(fields, "response_format", false);
  if (auto extension = read_constraint_extensions(fields)) {
    if (spec.constraint) bad_field(extension->path, "only one constraint can be set, response_format is set too");
    spec.constraint = std::move(extension);
  }
  for (const char* unsupported : {"functions", "function_call", "audio", "prediction", "web_search_options"}) {
    if (const Json* value = fields.find(unsupported); value != nullptr) bad_field(unsupported, "is not offered here");
  }
  if (const Json* modalities = fields.array("modalities"); modalities != nullptr && *modalities != Json::array({"text"})) {
    bad_field("modalities", "only [\"text\"] is offered here");
  }
  fields.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "verbosity"});
  log_unknown_fields(http.path, fields);

  spec.request.messages = std::move(conversation.messages);
  spec.request.images = std::move(conversation.images);
  const int choices = spec.choices;
  GenerationSpec generation = make_generation(api, std::move(spec));
  run_generation(api, std::move(generation), std::make_unique<ChatListener>(api, options, choices, responder), responder);
}

}  // namespace heirloom::server
