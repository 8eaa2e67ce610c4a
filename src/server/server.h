// The HTTP server as the command line starts it: options, one blocking call.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "heirloom/engine.h"
#include "server/http_types.h"

namespace heirloom::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::vector<std::string> api_keys;       // any of them opens /v1; empty = open
  std::vector<std::string> cors_origins;   // besides local ones; "*" = any, without credentials
  bool think = false;                      // thinking where a request does not say
  bool web_page = true;
  int max_waiting = 256;                   // admitted requests; more are answered 503
  int io_threads = 1;
  int work_threads = 2;                    // parsing, templates, grammars
  std::chrono::milliseconds grace{30'000}; // for running requests at shutdown
  HttpLimits http;
};

/// Serves until SIGINT or SIGTERM, then finishes running requests (a second signal cuts them off). Prints the address on
/// stderr when it listens. Throws Error{usage} if it cannot listen. Returns how many requests were cut off.
int run_server(Engine& engine, const ServerOptions& options);

}  // namespace heirloom::server
