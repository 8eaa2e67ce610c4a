#include "server/api_context.h"

#include "base/json.h"
#include "base/log.h"

namespace heirloom::server {
namespace {

constexpr int kBodyDepth = 128;

}  // namespace

Json parse_body(const HttpRequest& request) {
  if (const auto encoding = request.header("content-encoding"); !encoding.empty() && encoding != "identity") {
    throw ApiError(415, "request bodies must not be compressed (Content-Encoding: identity)");
  }
  try {
    return parse_json(request.body, "request body", ErrorKind::usage, kBodyDepth);
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
}

Headers stream_headers() {
  return {{"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
}

void run_generation(ApiContext& api, GenerationSpec spec, std::unique_ptr<GenerationListener> listener,
                    const std::shared_ptr<HttpResponder>& responder) {
  if (api.stats.running.load() + spec.choices > api.options.max_waiting) {
    throw ApiError(503, fmt::format("{} requests are running or waiting, the most this server takes; try again later",
                                    api.stats.running.load()));
  }
  const auto generation = std::make_shared<Generation>(std::move(spec), std::move(listener), api.stats, api.post);
  responder->on_disconnect([weak = std::weak_ptr(generation), &stats = api.stats] {
    // A client that leaves with its whole answer cancels nothing, though the generation may still be there.
    if (const auto alive = weak.lock(); alive && alive->cancel()) stats.cancelled.fetch_add(1);
  });
  try {
    generation->start(api.engine);
  } catch (const Error& error) {
    throw submit_error(error);
  }
}

GenerationSpec make_generation(ApiContext& api, ConversationSpec spec) {
  GenerationSpec result;
  Request& request = spec.request;
  request.tools = spec.tools.tools;
  const bool reasoning = api.traits.starts_in_reasoning(request.template_kwargs);
  std::optional<ConstraintSpec> constraint = std::move(spec.constraint);
  if (spec.tools.constraint) {
    if (constraint) {
      if (spec.tools.constraint->must_call) bad_field(constraint->path, "cannot be combined with a required tool call");
      bad_field(constraint->path, "cannot be combined with strict tools");
    }
    constraint = std::move(spec.tools.constraint);
  }
  if (constraint) {
    constraint->after_reasoning = reasoning;
    result.make_constraint = api.constraints.compile(*constraint);
  }
  result.parser.starts_in_reasoning = reasoning;
  result.parser.read_calls = spec.tools.read_calls;
  result.parser.tools = ToolSchemas(request.tools);
  result.parser.make_call_id = [prefix = std::string(spec.call_id_prefix)] { return random_id(prefix); };
  result.one_call = spec.tools.one_call;
  result.choices = spec.choices;
  result.request = std::move(request);
  return result;
}

void GatheredAnswer::add(const OutputDelta& delta) {
  switch (delta.kind) {
    case OutputDelta::Kind::reasoning: reasoning += delta.text; break;
    case OutputDelta::Kind::content: content += delta.text; break;
    case OutputDelta::Kind::call_begin: calls.push_back({delta.call_id, delta.text, ""}); break;
    case OutputDelta::Kind::call_arguments: calls.back().arguments += delta.text; break;
    case OutputDelta::Kind::call_end: break;
  }
}

std::string openai_finish_reason(const ChoiceEnd& end) {
  if (end.result.finish_reason == FinishReason::length) return "length";
  return end.called_tools ? "tool_calls" : "stop";
}

Json openai_usage(std::int64_t prompt, std::int64_t cached, std::int64_t completion) {
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace heirloom::server
