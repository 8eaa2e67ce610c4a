#include "server/api_server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "base/printable.h"
#include "server/access.h"
#include "server/info_api.h"
#include "server/web_assets.h"

namespace heirloom::server {
namespace {

struct Route {
  std::string_view method;
  std::string_view path;
  Endpoint endpoint;  // nullptr: answered by ApiServer itself
};

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", chat_completions},
    {"POST", "/v1/completions", text_completions},
    {"POST", "/v1/responses", responses},
    {"POST", "/v1/embeddings", embeddings},
    {"POST", "/v1/messages", anthropic_messages},
    {"POST", "/v1/messages/count_tokens", anthropic_count_tokens},
    {"GET", "/v1/models", nullptr},
    {"GET", "/health", nullptr},
    {"GET", "/metrics", nullptr},
    {"GET", "/openapi.json", nullptr},
};

constexpr std::string_view kModelPrefix = "/v1/models/";

/// Without a trailing slash, and with the /v1 that some clients leave out of their base address.
std::string canonical_path(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  for (const std::string_view bare : {"/chat/completions", "/completions", "/responses", "/embeddings", "/models", "/messages"}) {
    if (path == bare) return "/v1" + std::string(path);
  }
  return std::string(path);
}

ErrorStyle error_style(std::string_view path) {
  return path.starts_with("/v1/messages") ? ErrorStyle::anthropic : ErrorStyle::openai;
}

std::string percent_decode(std::string_view text) {
  const auto hex = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// The page loads nothing from elsewhere and runs no inline script; pictures are shown from memory (blob:, data:).
constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; font-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

bool loopback_host(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

struct ApiServer::Impl {
  Impl(Engine& engine_in, const ServerOptions& options_in)
      : engine(engine_in),
        options(options_in),
        access(options_in.api_keys, options_in.cors_origins, loopback_host(options_in.host)),
        traits(engine_in),
        constraints(engine_in),
        work(static_cast<std::size_t>(std::max(1, options_in.work_threads))),
        api{engine, options, traits, constraints, stats, [this](std::function<void()> task) { transport->post(std::move(task)); }},
        started(unix_time()) {}

  /// What may be done with a path ("GET, HEAD"); empty if there is no such path.
  std::string allowed_methods(const std::string& path) const {
    std::string allowed;
    find_route("", path, allowed);
    if (allowed.empty() && (path.starts_with(kModelPrefix) || page_asset(path) != nullptr)) allowed = "GET, HEAD";
    return allowed;
  }

  const Route* find_route(std::string_view method, std::string_view path, std::string& allowed) const {
    const Route* found = nullptr;
    for (const Route& route : kRoutes) {
      if (route.path != path) continue;
      allowed += allowed.empty() ? "" : ", ";
      allowed += route.method == "GET" ? "GET, HEAD" : route.method;
      if (route.method == method || (method == "HEAD" && route.method == "GET")) found = &route;
    }
    return found;
  }

  const WebAsset* page_asset(const std::string& path) const {
    if (!options.web_page) return nullptr;
    return find_web_asset(path == "/" ? "index.html" : std::string_view(path).substr(1));
  }

  void count(const std::string& path, int status) {
    const std::lock_guard lock(mutex);
    ++requests[{path, status}];
  }

  Engine& engine;
  const ServerOptions& options;
  AccessRules access;
  TemplateTraits traits;
  ConstraintCompiler constraints;
  GenerationStats stats;
  HttpServer* transport = nullptr;
  boost::asio::thread_pool work;
  ApiContext api;
  std::int64_t started;
  std::atomic<int> waiting{0};  // requests whose endpoint has not returned
  std::mutex mutex;
  std::map<std::pair<std::string, int>, std::uint64_t> requests;  // by route and status
};

namespace {

/// Adds what every response carries and notes the outcome.
class LoggedResponder final : public HttpResponder {
 public:
  LoggedResponder(std::shared_ptr<HttpResponder> inner, Headers headers, std::string line, std::function<void(int)> count)
      : inner_(std::move(inner)),
        headers_(std::move(headers)),
        line_(std::move(line)),
        count_(std::move(count)),
        begun_(std::chrono::steady_clock::now()) {}
  ~LoggedResponder() override {
    const auto elapsed = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun_).count();
    log::info("{} status={} ms={:.1f}{}", line_, status_, elapsed, streamed_ ? " streamed" : "");
  }

  void respond(HttpResponse response) override {
    note(response.status);
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    inner_->respond(std::move(response));
  }
  void begin_stream(int status, Headers headers) override {
    note(status);
    streamed_ = true;
    headers.insert(headers.end(), headers_.begin(), headers_.end());
    inner_->begin_stream(status, std::move(headers));
  }
  bool write(std::string piece) override { return inner_->write(std::move(piece)); }
  void end_stream() override { inner_->end_stream(); }
  void on_disconnect(std::function<void()> callback) override { inner_->on_disconnect(std::move(callback)); }

 private:
  void note(int status) {
    status_ = status;
    count_(status);
  }

  std::shared_ptr<HttpResponder> inner_;
  Headers headers_;
  std::string line_;
  std::function<void(int)> count_;
  std::chrono::steady_clock::time_point begun_;
  int status_ = 0;
  bool streamed_ = false;
};

Headers common_headers(const AccessRules& access, const HttpRequest& request, const std::string& request_id) {
  Headers headers = access.cors_headers(request);
  headers.emplace_back("X-Request-Id", request_id);
  headers.emplace_back("Server", "heirloom/" HEIRLOOM_VERSION);
  headers.emplace_back("X-Content-Type-Options", "nosniff");
  return headers;
}

}  // namespace

ApiServer::ApiServer(Engine& engine, const ServerOptions& options) : impl_(std::make_unique<Impl>(engine, options)) {}
ApiServer::~ApiServer() { stop(); }

void ApiServer::attach(HttpServer& transport) { impl_->transport = &transport; }

void ApiServer::stop() {
  impl_->work.join();
  // Generations refer to this object until the engine lets go of them, which it does within a step of being cancelled.
  while (impl_->stats.alive.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

HttpResponse ApiServer::refusal(const HttpRequest& head, int status, std::string_view message) {
  HttpResponse response = error_response(ApiError(status, std::string(message)), error_style(head.path));
  Headers headers = common_headers(impl_->access, head, random_id("req_"));
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  impl_->count("(refused)", status);
  return response;
}

std::optional<HttpResponse> ApiServer::precheck(const HttpRequest& head) {
  const std::string path = canonical_path(head.path);
  if (!impl_->access.origin_accepted(head)) {
    return refusal(head, 403, fmt::format("origin {} may not use this server; allow it with --cors-origin", printable(head.header("origin"), 80)));
  }
  const std::string allowed = impl_->allowed_methods(path);
  if (allowed.empty()) return refusal(head, 404, fmt::format("no such path: {}", printable(head.path, 80)));
  if (head.method == "OPTIONS") return std::nullopt;
  if ((path.starts_with("/v1/") || path == "/metrics") && impl_->access.needs_key() && !impl_->access.key_accepted(head)) {
    ApiError error(401, "a valid API key is required (Authorization: Bearer KEY or x-api-key: KEY)", {}, "invalid_api_key");
    HttpResponse response = error_response(error, error_style(head.path));
    Headers headers = common_headers(impl_->access, head, random_id("req_"));
    response.headers.insert(response.headers.end(), headers.begin(), headers.end());
    impl_->count("(refused)", 401);
    return response;
  }
  if (fmt::format(", {},", allowed).find(fmt::format(" {},", head.method)) != std::string::npos) return std::nullopt;
  HttpResponse response = refusal(head, 405, fmt::format("{} takes {}", path, allowed));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

void ApiServer::handle(HttpRequest request, std::shared_ptr<HttpResponder> plain) {
  const std::string path = canonical_path(request.path);
  const std::string request_id = random_id("req_");
  std::string allowed;
  const Route* route = impl_->find_route(request.method, path, allowed);
  const std::string label = route != nullptr ? std::string(route->path) : path.starts_with(kModelPrefix) ? "/v1/models/{id}" : "(page)";
  auto responder = std::make_shared<LoggedResponder>(
      std::move(plain), common_headers(impl_->access, request, request_id),
      fmt::format("{} {} peer={} id={}", request.method, label, request.peer, request_id),
      [this, label](int status) { impl_->count(label, status); });

  if (request.method == "OPTIONS") {
    const std::string methods = impl_->allowed_methods(path) + ", OPTIONS";
    Headers headers{{"Access-Control-Allow-Methods", methods},
                    {"Access-Control-Allow-Headers", "Authorization, Content-Type, x-api-key, anthropic-version, anthropic-beta, "
                                                     "anthropic-dangerous-direct-browser-access, x-stainless-arch, x-stainless-lang, "
                                                     "x-stainless-os, x-stainless-package-version, x-stainless-retry-count, "
                                                     "x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, "
                                                     "OpenAI-Organization, OpenAI-Project"},
                    {"Access-Control-Max-Age", "600"},
                    {"Allow", methods}};
    return responder->respond({204, std::move(headers), {}});
  }
  if (route != nullptr && route->endpoint != nullptr) {
    if (impl_->waiting.fetch_add(1) >= impl_->options.max_waiting) {
      impl_->waiting.fetch_sub(1);
      return responder->respond(error_response(ApiError(503, "too many requests are waiting; try again later"), error_style(path)));
    }
    request.path = path;
    boost::asio::post(impl_->work, [this, endpoint = route->endpoint, request = std::move(request), responder = std::move(responder)] {
      const ErrorStyle style = error_style(request.path);
      try {
        endpoint(impl_->api, request, responder);
      } catch (const ApiError& error) {
        responder->respond(error_response(error, style));
      } catch (const Error& error) {
        responder->respond(error_response(to_api_error(error), style));
      } catch (const std::bad_alloc&) {
        responder->respond(error_response(ApiError(503, "not enough memory for this request"), style));
      } catch (const std::exception& error) {
        log::error("{}: internal error: {}", request.path, error.what());
        responder->respond(error_response(ApiError(500, "internal error"), style));
      }
      impl_->waiting.fetch_sub(1);
    });
    return;
  }

  if (path == "/v1/models") return responder->respond(json_response(models_list(impl_->engine, impl_->started)));
  if (path.starts_with(kModelPrefix)) {
    const std::string name = percent_decode(std::string_view(path).substr(kModelPrefix.size()));
    if (name == impl_->engine.model_name()) return responder->respond(json_response(model_object(impl_->engine, impl_->started)));
    ApiError error(404, fmt::format("the model \"{}\" is not served here, \"{}\" is", printable(name, 80), impl_->engine.model_name()), "model",
                   "model_not_found");
    return responder->respond(error_response(error, ErrorStyle::openai));
  }
  if (path == "/health") {
    const EngineMetrics metrics = impl_->engine.metrics();
    return responder->respond(json_response({{"status", "ok"},
                                             {"model", impl_->engine.model_name()},
                                             {"version", HEIRLOOM_VERSION},
                                             {"slots_busy", metrics.slots_busy},
                                             {"slots_total", metrics.slots_total},
                                             {"queued", metrics.queued}}));
  }
  if (path == "/metrics") {
    std::map<std::pair<std::string, int>, std::uint64_t> requests;
    {
      const std::lock_guard lock(impl_->mutex);
      requests = impl_->requests;
    }
    std::string text = metrics_text(impl_->engine, impl_->stats, impl_->transport->counters(), requests);
    return responder->respond({200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, std::move(text)});
  }
  const WebAsset* asset = path == "/openapi.json" ? find_web_asset("openapi.json") : impl_->page_asset(path);
  if (asset == nullptr) return responder->respond(error_response(ApiError(404, "no such path"), ErrorStyle::openai));
  responder->respond({200,
                      {{"Content-Type", std::string(asset->type)},
                       {"Content-Security-Policy", std::string(kPagePolicy)},
                       {"Referrer-Policy", "no-referrer"},
                       {"X-Frame-Options", "DENY"},
                       {"Cache-Control", "no-cache"}},
                      std::string(asset->bytes)});
}

}  // namespace heirloom::server
