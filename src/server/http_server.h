// HTTP/1.1 over TCP (Boost.Beast: in Debian, header-only, parses incrementally and leaves limits and timeouts to us):
// keep-alive, pipelining, chunked streams, limits in bytes and time, detection of clients that went away while their
// answer is being made. What requests mean is the handler's business.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "server/http_types.h"

namespace heirloom::server {

struct HttpCounters {
  int connections = 0;             // open now
  std::uint64_t accepted = 0;      // since start
  std::uint64_t timeouts = 0;      // closed for a stalled header, body or reader
  std::uint64_t disconnects = 0;   // clients gone before their response was complete
  std::uint64_t slow_readers = 0;  // clients cut off because their queue was full
  int active = 0;                  // requests being answered
};

class HttpServer {
 public:
  /// Binds and listens; port 0 picks a free one. Throws Error{usage} if the address is bad or taken. Nothing is accepted
  /// before start(). `handler` must outlive the server.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start(int io_threads);
  int port() const;
  /// "http://127.0.0.1:8080", for people.
  std::string url() const;
  HttpCounters counters() const;
  /// Runs `task` on an I/O thread.
  void post(std::function<void()> task);

  /// Stops accepting and closes idle connections; waits up to `grace` for running responses (less if `hurry` says so), then
  /// cuts the rest off. Returns how many were cut off. I/O threads go on, so that handlers can finish.
  int drain(std::chrono::milliseconds grace, const std::function<bool()>& hurry = {});
  /// drain(0), then ends the I/O threads.
  void stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace heirloom::server
