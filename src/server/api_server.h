// Routes requests to endpoints: paths and methods, API keys, origins, errors, the log line and counters of each request.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/api_context.h"
#include "server/http_server.h"

namespace heirloom::server {

class ApiServer final : public HttpHandler {
 public:
  ApiServer(Engine& engine, const ServerOptions& options);
  ~ApiServer() override;

  /// The transport that the handler's answers travel on; set before it starts.
  void attach(HttpServer& transport);
  /// Waits until nothing refers to this object any more. Call it when the transport has no connections left but its threads
  /// still run.
  void stop();

  std::optional<HttpResponse> precheck(const HttpRequest& head) override;
  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) override;
  HttpResponse refusal(const HttpRequest& head, int status, std::string_view message) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace heirloom::server
