// POST /v1/responses: items in, items out. Nothing is stored: a client sends the whole conversation each time.
#include "server/api_context.h"
#include "server/conversation.h"
#include "base/log.h"

namespace heirloom::server {
namespace {

class ResponsesListener final : public GenerationListener {
 public:
  ResponsesListener(ApiContext& api, bool stream, Json echo, std::shared_ptr<HttpResponder> responder)
      : api_(api),
        stream_(stream),
        echo_(std::move(echo)),
        responder_(std::move(responder)),
        id_(random_id("resp_")),
        created_(unix_time()) {}

  void on_start() override {
    if (!stream_) return;
    responder_->begin_stream(200, stream_headers());
    event("response.created", {{"response", response("in_progress")}});
    event("response.in_progress", {{"response", response("in_progress")}});
  }

  void on_deltas(int, std::vector<OutputDelta> deltas, std::vector<TokenEvent>) override {
    for (const OutputDelta& delta : deltas) {
      switch (delta.kind) {
        case OutputDelta::Kind::reasoning: text_delta("reasoning", delta.text); break;
        case OutputDelta::Kind::content: text_delta("message", delta.text); break;
        case OutputDelta::Kind::call_begin: begin_call(delta); break;
        case OutputDelta::Kind::call_arguments: {
          Json& item = output_[call_items_[static_cast<std::size_t>(delta.call_index)]];
          item["arguments"] = item["arguments"].get<std::string>() + delta.text;
          if (stream_) {
            event("response.function_call_arguments.delta",
                  {{"item_id", item["id"]}, {"output_index", call_items_[static_cast<std::size_t>(delta.call_index)]}, {"delta", delta.text}});
          }
          break;
        }
        case OutputDelta::Kind::call_end: end_call(delta.call_index); break;
      }
    }
  }

  void on_choice_end(int, ChoiceEnd end) override {
    close_text_item(end.result.finish_reason == FinishReason::length ? "incomplete" : "completed");
    for (std::size_t i = 0; i < call_items_.size(); ++i) {
      Json& item = output_[call_items_[i]];
      if (item["status"] == "in_progress") item["status"] = "incomplete";
    }
    const RequestResult& result = end.result;
    usage_ = {{"input_tokens", result.prompt_tokens},
              {"input_tokens_details", {{"cached_tokens", result.cached_tokens}}},
              {"output_tokens", result.token_ids.size()},
              {"output_tokens_details", {{"reasoning_tokens", 0}}},
              {"total_tokens", result.prompt_tokens + static_cast<std::int64_t>(result.token_ids.size())}};
    if (result.finish_reason == FinishReason::error || result.finish_reason == FinishReason::cancelled) {
      error_ = run_error(result);
    } else if (result.finish_reason == FinishReason::length) {
      incomplete_ = true;
    }
  }

  void on_end() override {
    if (!stream_) {
      if (error_) return responder_->respond(error_response(*error_, ErrorStyle::openai));
      return responder_->respond({200, {{"Content-Type", "application/json"}}, dump(response(incomplete_ ? "incomplete" : "completed"))});
    }
    if (error_) {
      Json failed = response("failed");
      failed["error"] = {{"code", "server_error"}, {"message", error_->what()}};
      event("response.failed", {{"response", std::move(failed)}});
    } else if (incomplete_) {
      event("response.incomplete", {{"response", response("incomplete")}});
    } else {
      event("response.completed", {{"response", response("completed")}});
    }
    responder_->end_stream();
  }

 private:
  Json response(const char* status) const {
    Json body{{"id", id_}, {"object", "response"}, {"created_at", created_}, {"status", status}, {"error", nullptr}};
    body["incomplete_details"] = incomplete_ ? Json{{"reason", "max_output_tokens"}} : Json();
    body["model"] = api_.engine.model_name();
    body["output"] = output_;
    for (const auto& [key, value] : echo_.items()) body[key] = value;
    body["usage"] = usage_;
    return body;
  }

  void event(const char* type, Json fields) {
    Json body{{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : fields.items()) body[key] = std::move(value);
    responder_->write(fmt::format("event: {}\ndata: {}\n\n", type, dump(body)));
  }

  /// Text of a message or of reasoning; opens the item if another kind came before.
  void text_delta(const std::string& kind, const std::string& text) {
    const bool message = kind == "message";
    if (open_kind_ != kind) {
      close_text_item("completed");
      open_kind_ = kind;
      Json item{{"id", random_id(message ? "msg_" : "rs_")}, {"type", kind}, {"status", "in_progress"}};
      if (message) {
        item["role"] = "assistant";
      } else {
        item["summary"] = Json::array();
      }
      item["content"] = Json::array();
      open_index_ = output_.size();
      output_.push_back(item);
      open_text_.clear();
      if (stream_) {
        event("response.output_item.added", {{"output_index", open_index_}, {"item", item}});
        event("response.content_part.added",
              {{"item_id", item["id"]}, {"output_index", open_index_}, {"content_index", 0}, {"part", part("")}});
      }
    }
    open_text_ += text;
    if (!stream_) return;
    Json fields{{"item_id", output_[open_index_]["id"]}, {"output_index", open_index_}, {"content_index", 0}, {"delta", text}};
    if (message) fields["logprobs"] = Json::array();
    event(message ? "response.output_text.delta" : "response.reasoning_text.delta", std::move(fields));
  }

  Json part(const std::string& text) const {
    if (open_kind_ == "message") {
      return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
    }
    return {{"type", "reasoning_text"}, {"text", text}};
  }

  void close_text_item(const char* status) {
    if (open_kind_.empty()) return;
    Json& item = output_[open_index_];
    const bool message = open_kind_ == "message";
    item["content"].push_back(part(open_text_));
    item["status"] = status;
    if (stream_) {
      Json fields{{"item_id", item["id"]}, {"output_index", open_index_}, {"content_index", 0}, {"text", open_text_}};
      if (message) fields["logprobs"] = Json::array();
      event(message ? "response.output_text.done" : "response.reasoning_text.done", std::move(fields));
      event("response.content_part.done",
            {{"item_id", item["id"]}, {"output_index", open_index_}, {"content_index", 0}, {"part", part(open_text_)}});
      event("response.output_item.done", {{"output_index", open_index_}, {"item", item}});
    }
    open_kind_.clear();
  }

  void begin_call(const OutputDelta& delta) {
    close_text_item("completed");
    Json item{{"id", random_id("fc_")}, {"type", "function_call"}, {"status", "in_progress"},
              {"call_id", delta.call_id}, {"name", delta.text}, {"arguments", ""}};
    call_items_.push_back(output_.size());
    output_.push_back(item);
    if (stream_) event("response.output_item.added", {{"output_index", call_items_.back()}, {"item", std::move(item)}});
  }

  void end_call(int index) {
    const std::size_t at = call_items_[static_cast<std::size_t>(index)];
    Json& item = output_[at];
    item["status"] = "completed";
    if (!stream_) return;
    event("response.function_call_arguments.done",
          {{"item_id", item["id"]}, {"output_index", at}, {"name", item["name"]}, {"arguments", item["arguments"]}});
    event("response.output_item.done", {{"output_index", at}, {"item", item}});
  }

  ApiContext& api_;
  bool stream_;
  Json echo_;  // request fields that the response repeats
  std::shared_ptr<HttpResponder> responder_;
  std::string id_;
  std::int64_t created_;
  std::int64_t sequence_ = 0;
  Json output_ = Json::array();
  std::vector<std::size_t> call_items_;
  std::string open_kind_;  // "message", "reasoning" or empty
  std::size_t open_index_ = 0;
  std::string open_text_;
  Json usage_;
  bool incomplete_ = false;
  std::optional<ApiError> error_;
};

Json given_or(Fields& fields, const char* name, Json otherwise) {
  const Json* value = fields.find(name);
  return value == nullptr ? otherwise : *value;
}

}  // namespace

void responses(ApiContext& api, const HttpRequest& http, const std::shared_ptr<HttpResponder>& responder) {
  const Json body = parse_body(http);
  Fields fields(body, "");
  fields.string("model");
  if (fields.find("previous_response_id") != nullptr) {
    bad_field("previous_response_id", "responses are not stored here; send the whole conversation as input");
  }
  for (const char* unsupported : {"conversation", "prompt"}) {
    if (fields.find(unsupported) != nullptr) bad_field(unsupported, "is not offered here; send the whole conversation as input");
  }
  if (fields.boolean("background").value_or(false)) bad_field("background", "is not offered here");
  if (fields.choice("truncation", "auto disabled") == "auto") bad_field("truncation", "only disabled is offered here");
  const auto instructions = fields.string("instructions");
  ConversationSpec spec;
  Conversation conversation =
      conversation_from_responses(instructions ? &*instructions : nullptr, fields.require("input"), api.image_policy());
  const bool stream = fields.boolean("stream").value_or(false);
  read_sampling(fields, api.engine, spec.request);
  spec.request.max_tokens = static_cast<int>(fields.integer("max_output_tokens", 1, 1 << 30).value_or(0));
  if (const auto top = fields.integer("top_logprobs", 0, 20); top && *top > 0) bad_field("top_logprobs", "log probabilities are offered by /v1/chat/completions only");

  std::optional<std::string> effort;
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    effort = inner.choice("effort", "none minimal low medium high xhigh max");
  }
  spec.request.template_kwargs = read_template_kwargs(fields, effort, last_user_text(conversation.messages), api.options.think);

  const Json* tools = fields.array("tools");
  const bool have_tools = tools != nullptr && !tools->empty();
  const auto [choice, name] = read_tool_choice(fields, have_tools);
  const bool one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  if (have_tools) spec.tools = make_tool_use(tools_from_responses(*tools), choice, name, one_call, api.traits.call_style());
  if (const Json* text = fields.object("text")) {
    Fields inner(*text, "text");
    spec.constraint = read_response_format(inner, "format", true);
    inner.ignore({"verbosity"});
  }
  fields.ignore({"user", "metadata", "store", "include", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "stream_options", "max_tool_calls"});
  log_unknown_fields(http.path, fields);

  const SamplingParams& sampling = spec.request.sampling;
  Json echo{{"instructions", given_or(fields, "instructions", nullptr)},
            {"max_output_tokens", given_or(fields, "max_output_tokens", nullptr)},
            {"metadata", given_or(fields, "metadata", Json::object())},
            {"parallel_tool_calls", !one_call},
            {"previous_response_id", nullptr},
            {"reasoning", given_or(fields, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
            {"store", false},
            {"temperature", sampling.temperature},
            {"text", given_or(fields, "text", {{"format", {{"type", "text"}}}})},
            {"tool_choice", given_or(fields, "tool_choice", "auto")},
            {"tools", given_or(fields, "tools", Json::array())},
            {"top_p", sampling.top_p},
            {"truncation", "disabled"},
            {"user", given_or(fields, "user", nullptr)}};
  spec.request.messages = std::move(conversation.messages);
  spec.request.images = std::move(conversation.images);
  GenerationSpec generation = make_generation(api, std::move(spec));
  run_generation(api, std::move(generation), std::make_unique<ResponsesListener>(api, stream, std::move(echo), responder), responder);
}

}  // namespace heirloom::server
