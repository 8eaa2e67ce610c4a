// What the HTTP transport (http_server) and the API (api_server) say to each other. No socket type appears here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heirloom::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without the query, not percent-decoded
  std::string query;   // without '?'
  Headers headers;     // names in lower case
  std::string body;
  std::string peer;    // address of the client
  std::uint64_t id = 0;  // counts requests of this process

  /// Value of the first header of that (lower case) name; empty if absent.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  Headers headers;
  std::string body;
};

/// One request's way back to its client. Every function may be called from any thread; after the client has gone they do
/// nothing. Exactly one of `respond` and `begin_stream` is called, once.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;
  virtual void respond(HttpResponse response) = 0;
  /// Starts a chunked (HTTP/1.1) or close-delimited (HTTP/1.0) body.
  virtual void begin_stream(int status, Headers headers) = 0;
  /// Queues a piece of the body. False once the client has gone or has let more than the queue limit pile up.
  virtual bool write(std::string piece) = 0;
  virtual void end_stream() = 0;
  /// `callback` runs once, on some thread, if the client goes away before the response is complete; at once if it has gone.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Called when the headers are there and the body is not. A response refuses the request without reading its body.
  virtual std::optional<HttpResponse> precheck(const HttpRequest& head) = 0;
  /// Called on an I/O thread; must hand long work to another one.
  virtual void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) = 0;
  /// A response for a request that the transport itself refuses (too large, malformed, over a limit).
  virtual HttpResponse refusal(const HttpRequest& head, int status, std::string_view message) = 0;
};

struct HttpLimits {
  std::uint64_t header_bytes = 64ull << 10;
  std::uint64_t body_bytes = 64ull << 20;           // of one request
  std::uint64_t all_bodies_bytes = 512ull << 20;    // of the requests being received at one time
  std::uint64_t queue_bytes = 4ull << 20;           // response bytes a client may leave unread
  int connections = 4096;
  std::chrono::milliseconds stall{30'000};          // headers as a whole; each pause of a body or of a reader
  std::chrono::milliseconds idle{120'000};          // keep-alive connection between requests
};

}  // namespace heirloom::server
