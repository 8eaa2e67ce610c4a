// A server on a free port over any engine, one with a FakeEngine behind it, and a plain socket client that shows every byte.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api_server.h"
#include "server/fake_engine.h"
#include "server/http_server.h"

namespace heirloom::test {

class RunningServer {
 public:
  /// `engine` and `options` must outlive it.
  RunningServer(Engine& engine, const server::ServerOptions& options);
  ~RunningServer();
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  int port() const { return transport_->port(); }
  server::HttpServer& transport() { return *transport_; }

 private:
  std::unique_ptr<server::ApiServer> api_;
  std::unique_ptr<server::HttpServer> transport_;
};

class TestServer {
 public:
  explicit TestServer(server::ServerOptions options = {}, int context_tokens = 4096);

  FakeEngine engine;
  server::ServerOptions options;
  int port() const { return running_.port(); }
  server::HttpServer& transport() { return running_.transport(); }
  /// Waits up to `limit` for the condition.
  static bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = std::chrono::seconds(5));

 private:
  RunningServer running_;
};

struct Reply {
  int status = 0;  // 0: the connection was closed without an answer
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // chunks joined
  std::string header(const std::string& name) const;
  Json json() const { return Json::parse(body); }
  /// Data of the events of a stream, "[DONE]" included.
  std::vector<std::string> events() const;
  std::vector<Json> json_events() const;
};

/// One connection.
class Client {
 public:
  explicit Client(int port);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& bytes);
  /// Sends a request with a JSON (or any) body.
  void request(const std::string& method, const std::string& path, const std::string& body = {}, const std::string& extra_headers = {});
  /// Reads one response; waits at most `limit`.
  Reply read_reply(std::chrono::milliseconds limit = std::chrono::seconds(20), bool head = false);
  /// Reads what there is within `limit`; empty at the end of the connection or when nothing came.
  std::string read_some(std::chrono::milliseconds limit);
  bool closed_within(std::chrono::milliseconds limit);
  void close();
  void half_close();

 private:
  int fd_ = -1;
  std::string pending_;
};

Reply post(int port, const std::string& path, const Json& body, const std::string& extra_headers = {});
Reply get(int port, const std::string& path, const std::string& extra_headers = {});

}  // namespace heirloom::test
