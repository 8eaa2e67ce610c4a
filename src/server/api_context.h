// What every API endpoint works with, and the pieces that the generating endpoints share.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/constraints.h"
#include "server/generation.h"
#include "server/http_types.h"
#include "server/image_source.h"
#include "server/request_options.h"
#include "server/server.h"
#include "server/template_traits.h"

namespace heirloom::server {

struct ApiContext {
  Engine& engine;
  const ServerOptions& options;
  TemplateTraits& traits;
  ConstraintCompiler& constraints;
  GenerationStats& stats;
  Generation::Post post;  // onto an I/O thread

  ImagePolicy image_policy() const {
    ImagePolicy policy;
    policy.accepted = engine.accepts_images();
    return policy;
  }
};

/// Endpoints run on a work thread. They answer through `responder` or throw (ApiError, heirloom::Error).
using Endpoint = void (*)(ApiContext& api, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);

void chat_completions(ApiContext& api, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);
void text_completions(ApiContext& api, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);
void responses(ApiContext& api, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);
void embeddings(ApiContext& api, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);
void anthropic_messages(ApiContext& api, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);
void anthropic_count_tokens(ApiContext& api, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);

/// The JSON body, within limits of depth and size. Throws ApiError(400, 415).
Json parse_body(const HttpRequest& request);

/// Headers of an event stream.
Headers stream_headers();

/// Starts a generation whose client is behind `responder`: it is cancelled when the client goes away. Throws ApiError if the
/// request is refused.
void run_generation(ApiContext& api, GenerationSpec spec, std::unique_ptr<GenerationListener> listener,
                    const std::shared_ptr<HttpResponder>& responder);

/// Everything a conversation needs to become a GenerationSpec.
struct ConversationSpec {
  Request request;                           // messages, images, template_kwargs, sampling, limits set
  ToolUse tools;
  std::optional<ConstraintSpec> constraint;  // response_format and the like
  int choices = 1;
  std::string_view call_id_prefix = "call_";
};
GenerationSpec make_generation(ApiContext& api, ConversationSpec spec);

/// An answer gathered from its deltas.
struct GatheredCall {
  std::string id, name, arguments;
};
struct GatheredAnswer {
  std::string reasoning, content;
  std::vector<GatheredCall> calls;
  void add(const OutputDelta& delta);
};

/// "stop", "length", "tool_calls" as OpenAI's APIs say it.
std::string openai_finish_reason(const ChoiceEnd& end);
Json openai_usage(std::int64_t prompt, std::int64_t cached, std::int64_t completion);
/// Text as a JSON line; broken UTF-8 (half characters of a token) is replaced.
std::string dump(const Json& json);

}  // namespace heirloom::server
