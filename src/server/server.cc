#include "server/server.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <thread>

#include "base/log.h"
#include "server/api_server.h"
#include "server/http_server.h"

namespace heirloom::server {

int run_server(Engine& engine, const ServerOptions& options) {
  ApiServer api(engine, options);
  HttpServer transport(options.host, options.port, options.http, api);
  api.attach(transport);

  boost::asio::io_context waiting;
  boost::asio::signal_set signals(waiting, SIGINT, SIGTERM);
  std::atomic<int> received{0};
  std::function<void()> listen = [&] {
    signals.async_wait([&](boost::system::error_code error, int) {
      if (error) return;
      if (received.fetch_add(1) == 0) waiting.stop();
      listen();
    });
  };
  listen();

  transport.start(options.io_threads);
  log::info("listening on {} ({}; {} slots; {})", transport.url(), engine.model_name(), engine.metrics().slots_total,
            options.api_keys.empty() ? "no API key" : "API key required");
  waiting.run();

  const int active = transport.counters().active;
  if (active > 0) log::info("stopping: {} requests are running; a second signal cuts them off", active);
  // The signal loop goes on while running requests finish.
  waiting.restart();
  std::thread watcher([&] { waiting.run(); });
  const int cut_off = transport.drain(options.grace, [&] { return received.load() > 1; });
  api.stop();
  transport.stop();
  waiting.stop();
  watcher.join();
  if (cut_off > 0) {
    log::warning("stopped; {} running requests were cut off", cut_off);
  } else {
    log::info("stopped; every request was finished");
  }
  return cut_off;
}

}  // namespace heirloom::server
