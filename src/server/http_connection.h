// One client connection: reads requests one after the other, hands each to the handler, writes what comes back, and watches
// for the client going away meanwhile. Internal to the HTTP transport.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <memory>

#include "server/http_types.h"

namespace heirloom::server {

/// Limits and counters shared by all connections of a server.
struct TransportState {
  HttpLimits limits;
  HttpHandler* handler = nullptr;
  std::atomic<int> connections{0};
  std::atomic<int> active{0};
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> timeouts{0};
  std::atomic<std::uint64_t> disconnects{0};
  std::atomic<std::uint64_t> slow_readers{0};
  std::atomic<std::uint64_t> body_bytes{0};  // of requests being received
  std::atomic<std::uint64_t> next_id{1};
};

class Connection {
 public:
  virtual ~Connection() = default;
  virtual void start() = 0;
  /// Answers 503 and closes: the server has as many connections as it takes.
  virtual void refuse_connection() = 0;
  virtual void close_when_idle() = 0;
  virtual void abort() = 0;
};

class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual void connection_closed(const std::shared_ptr<Connection>& connection) = 0;
  virtual void response_finished() = 0;
};

/// `state` must outlive the connection (it is part of `owner`). The socket's executor must be a strand.
std::shared_ptr<Connection> make_connection(boost::asio::ip::tcp::socket socket, TransportState& state,
                                            std::shared_ptr<ConnectionOwner> owner);

}  // namespace heirloom::server
