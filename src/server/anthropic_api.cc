// POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them.
#include "base/log.h"
#include "base/printable.h"
#include "server/api_context.h"
#include "server/conversation.h"

namespace heirloom::server {
namespace {

class MessagesListener final : public GenerationListener {
 public:
  MessagesListener(ApiContext& api, bool stream, std::int64_t prompt_tokens, std::shared_ptr<HttpResponder> responder)
      : api_(api), stream_(stream), prompt_tokens_(prompt_tokens), responder_(std::move(responder)), id_(random_id("msg_")) {}

  void on_start() override {
    if (!stream_) return;
    responder_->begin_stream(200, stream_headers());
    Json message = envelope();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    // The cache's share is known when the prompt has been read; message_delta corrects these.
    message["usage"] = {{"input_tokens", prompt_tokens_}, {"cache_creation_input_tokens", 0}, {"cache_read_input_tokens", 0}, {"output_tokens", 0}};
    event("message_start", {{"message", std::move(message)}});
    event("ping", Json::object());
  }

  void on_deltas(int, std::vector<OutputDelta> deltas, std::vector<TokenEvent>) override {
    for (const OutputDelta& delta : deltas) {
      switch (delta.kind) {
        case OutputDelta::Kind::reasoning: text_delta("thinking", delta.text); break;
        case OutputDelta::Kind::content: text_delta("text", delta.text); break;
        case OutputDelta::Kind::call_begin:
          open_block({{"type", "tool_use"}, {"id", delta.call_id}, {"name", delta.text}, {"input", Json::object()}});
          break;
        case OutputDelta::Kind::call_arguments:
          arguments_ += delta.text;
          if (stream_) block_delta({{"type", "input_json_delta"}, {"partial_json", delta.text}});
          break;
        case OutputDelta::Kind::call_end: close_block(); break;
      }
    }
  }

  void on_choice_end(int, ChoiceEnd end) override {
    close_block();
    const RequestResult& result = end.result;
    if (result.finish_reason == FinishReason::error || result.finish_reason == FinishReason::cancelled) {
      error_ = run_error(result);
      return;
    }
    stop_reason_ = result.finish_reason == FinishReason::length ? "max_tokens"
                   : end.called_tools                           ? "tool_use"
                   : !result.stop_string.empty()                ? "stop_sequence"
                                                                : "end_turn";
    if (stop_reason_ == "stop_sequence") stop_sequence_ = result.stop_string;
    usage_ = {{"input_tokens", result.prompt_tokens - result.cached_tokens},
              {"cache_creation_input_tokens", 0},
              {"cache_read_input_tokens", result.cached_tokens},
              {"output_tokens", result.token_ids.size()}};
  }

  void on_end() override {
    if (!stream_) {
      if (error_) return responder_->respond(error_response(*error_, ErrorStyle::anthropic));
      Json message = envelope();
      message["content"] = std::move(content_);
      message["stop_reason"] = stop_reason_;
      message["stop_sequence"] = stop_sequence_;
      message["usage"] = usage_;
      return responder_->respond({200, {{"Content-Type", "application/json"}}, dump(message)});
    }
    if (error_) {
      event("error", error_body(*error_, ErrorStyle::anthropic));
    } else {
      event("message_delta", {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}}, {"usage", usage_}});
      event("message_stop", Json::object());
    }
    responder_->end_stream();
  }

 private:
  Json envelope() const {
    return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", api_.engine.model_name()}, {"content", Json::array()}};
  }

  void event(const char* type, Json fields) {
    Json body{{"type", type}};
    for (auto& [key, value] : fields.items()) body[key] = std::move(value);
    responder_->write(fmt::format("event: {}\ndata: {}\n\n", type, dump(body)));
  }

  void open_block(Json block) {
    close_block();
    open_type_ = block["type"].get<std::string>();
    arguments_.clear();
    if (stream_) event("content_block_start", {{"index", content_.size()}, {"content_block", block}});
    content_.push_back(std::move(block));
  }

  void block_delta(Json delta) { event("content_block_delta", {{"index", content_.size() - 1}, {"delta", std::move(delta)}}); }

  void text_delta(const std::string& type, const std::string& text) {
    if (open_type_ != type) {
      Json block{{"type", type}, {type, ""}};
      if (type == "thinking") block["signature"] = "";
      open_block(std::move(block));
    }
    Json& block = content_.back();
    if (!stream_) block[type] = block[type].get<std::string>() + text;
    if (stream_) block_delta({{"type", type + "_delta"}, {type, text}});
  }

  void close_block() {
    if (open_type_.empty()) return;
    if (open_type_ == "tool_use" && !stream_) {
      // Cut off in the middle, the arguments are no JSON; they are then kept as text.
      Json input = Json::parse(arguments_.empty() ? "{}" : arguments_, nullptr, false);
      content_.back()["input"] = input.is_object() ? std::move(input) : Json{{"arguments", arguments_}};
    }
    if (stream_) event("content_block_stop", {{"index", content_.size() - 1}});
    open_type_.clear();
  }

  ApiContext& api_;
  bool stream_;
  std::int64_t prompt_tokens_;
  std::shared_ptr<HttpResponder> responder_;
  std::string id_;
  Json content_ = Json::array();  // blocks; when streaming only their headers
  std::string open_type_;         // of the last block, while it is open
  std::string arguments_;
  std::string stop_reason_;
  Json stop_sequence_;
  Json usage_;
  std::optional<ApiError> error_;
};

/// Reads what messages and count_tokens share.
ConversationSpec read_conversation(ApiContext& api, Fields& fields, Conversation& conversation) {
  ConversationSpec spec;
  spec.call_id_prefix = "toolu_";
  fields.string("model");
  conversation = conversation_from_anthropic(fields.find("system"), fields.require("messages"), api.image_policy());

  std::optional<std::string> effort;
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    const auto type = inner.choice("type", "enabled disabled adaptive");
    if (!type) bad_field("thinking.type", "is required");
    inner.integer("budget_tokens", 1, 1 << 30);
    effort = *type == "disabled" ? "none" : "high";
  }
  spec.request.template_kwargs = read_template_kwargs(fields, effort, last_user_text(conversation.messages), api.options.think);

  const Json* tools = fields.array("tools");
  const bool have_tools = tools != nullptr && !tools->empty();
  ToolChoice choice = ToolChoice::automatic;
  std::string name;
  bool one_call = false;
  if (const Json* given = fields.object("tool_choice")) {
    Fields inner(*given, "tool_choice");
    const auto type = inner.choice("type", "auto any tool none");
    if (!type) bad_field("tool_choice.type", "is required");
    one_call = inner.boolean("disable_parallel_tool_use").value_or(false);
    if (*type == "any") choice = ToolChoice::required;
    if (*type == "none") choice = ToolChoice::none;
    if (*type == "tool") {
      choice = ToolChoice::named;
      name = inner.string("name").value_or("");
      if (name.empty()) bad_field("tool_choice.name", "is required");
    }
    if (!have_tools && (choice == ToolChoice::required || choice == ToolChoice::named)) {
      bad_field("tool_choice", "asks for a call, but there are no tools");
    }
  }
  if (have_tools) spec.tools = make_tool_use(tools_from_anthropic(*tools), choice, name, one_call, api.traits.call_style());
  return spec;
}

}  // namespace

void anthropic_messages(ApiContext& api, const HttpRequest& http, const std::shared_ptr<HttpResponder>& responder) {
  const Json body = parse_body(http);
  Fields fields(body, "");
  Conversation conversation;
  ConversationSpec spec = read_conversation(api, fields, conversation);
  read_sampling(fields, api.engine, spec.request);
  const auto max_tokens = fields.integer("max_tokens", 1, 1 << 30);
  if (!max_tokens) bad_field("max_tokens", "is required");
  spec.request.max_tokens = static_cast<int>(*max_tokens);
  spec.request.stop = read_stop(fields, "stop_sequences", 16);
  const bool stream = fields.boolean("stream").value_or(false);
  if (const Json* output = fields.object("output_config")) {
    Fields inner(*output, "output_config");
    inner.ignore({"effort"});
    spec.constraint = read_response_format(inner, "format", true);
  }
  if (auto older = read_response_format(fields, "output_format", true)) spec.constraint = std::move(older);
  for (const char* unsupported : {"container", "mcp_servers", "context_management"}) {
    if (const Json* value = fields.find(unsupported); value != nullptr && !value->empty()) bad_field(unsupported, "is not offered here");
  }
  fields.ignore({"metadata", "service_tier", "cache_control", "betas"});
  log_unknown_fields(http.path, fields);
  spec.request.messages = std::move(conversation.messages);
  spec.request.images = std::move(conversation.images);
  GenerationSpec generation = make_generation(api, std::move(spec));
  const std::int64_t prompt_tokens = stream ? api.engine.inspect_prompt(generation.request).prompt_tokens : 0;
  run_generation(api, std::move(generation), std::make_unique<MessagesListener>(api, stream, prompt_tokens, responder), responder);
}

void anthropic_count_tokens(ApiContext& api, const HttpRequest& http, const std::shared_ptr<HttpResponder>& responder) {
  const Json body = parse_body(http);
  Fields fields(body, "");
  Conversation conversation;
  ConversationSpec spec = read_conversation(api, fields, conversation);
  fields.ignore({"max_tokens", "stream", "temperature", "top_k", "top_p", "metadata", "cache_control"});
  log_unknown_fields(http.path, fields);
  Request request;
  request.messages = std::move(conversation.messages);
  request.images = std::move(conversation.images);
  request.tools = spec.tools.tools;
  request.template_kwargs = spec.request.template_kwargs;
  responder->respond(json_response({{"input_tokens", api.engine.inspect_prompt(request).prompt_tokens}}));
}

}  // namespace heirloom::server
