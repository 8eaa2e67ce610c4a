#include "server/http_server.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_slice.h"
#include "server/http_connection.h"

namespace heirloom::server {
namespace net = boost::asio;
using tcp = net::ip::tcp;

namespace {

// A server of 1,024 and more connections needs more descriptors than the usual soft limit of 1,024.
void raise_descriptor_limit(int wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t target = std::min<rlim_t>(limit.rlim_max, static_cast<rlim_t>(wanted) + 256);
  if (limit.rlim_cur < target) {
    limit.rlim_cur = target;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

struct HttpServer::Impl : ConnectionOwner, std::enable_shared_from_this<HttpServer::Impl> {
  Impl(const HttpLimits& limits, HttpHandler& handler_in)
      : handler(handler_in), work(net::make_work_guard(io)), acceptor(io), retry(io), wake(io) {
    const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (descriptor < 0) fail(ErrorKind::internal, "eventfd: {}", std::generic_category().message(errno));
    wake.assign(descriptor);
    state.limits = limits;
    state.handler = &handler;
  }

  void listen(const std::string& host, int port) {
    boost::system::error_code error;
    tcp::resolver resolver(io);
    const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
    if (error || found.empty()) fail(ErrorKind::usage, "--host {}: {}", host, error.message());
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
    if (error) fail(ErrorKind::usage, "cannot listen on {}:{}: {}", host, port, error.message());
  }

  void accept() {
    auto self = shared_from_this();
    acceptor.async_accept(net::make_strand(io), [self](boost::system::error_code error, tcp::socket socket) {
      if (self->stopping.load()) return;
      if (error) {
        // Out of descriptors: wait for connections to end instead of spinning.
        self->retry.expires_after(std::chrono::milliseconds(100));
        self->retry.async_wait([self](boost::system::error_code wait_error) {
          if (!wait_error && !self->stopping.load()) self->accept();
        });
        return;
      }
      self->admit(std::move(socket));
      self->accept();
    });
  }

  void admit(tcp::socket socket) {
    auto connection = make_connection(std::move(socket), state, shared_from_this());
    state.accepted.fetch_add(1);
    bool full = false;
    {
      const std::lock_guard lock(mutex);
      full = static_cast<int>(connections.size()) >= state.limits.connections;
      if (!full) connections.insert(connection);
      state.connections.store(static_cast<int>(connections.size()));
    }
    if (full) {
      connection->refuse_connection();
    } else {
      connection->start();
    }
  }

  void connection_closed(const std::shared_ptr<Connection>& connection) override {
    const std::lock_guard lock(mutex);
    connections.erase(connection);
    state.connections.store(static_cast<int>(connections.size()));
    changed.notify_all();
  }

  void response_finished() override {
    const std::lock_guard lock(mutex);
    changed.notify_all();
  }

  /// Tasks wait in a list, and an eventfd wakes one I/O thread for all of them: the engine's thread posts a task for each of its
  /// streams in every step. (net::post would wake the I/O thread with the context's lock held; where the two share a processor
  /// the woken one goes first, runs into the lock, and the processor goes back and forth between them.)
  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(tasks_mutex);
      tasks.push_back(std::move(task));
      if (std::exchange(tasks_posted, true)) return;
    }
    constexpr std::uint64_t kOne = 1;
    [[maybe_unused]] const auto written = ::write(wake.native_handle(), &kOne, sizeof kOne);  // an eventfd takes 2^64 - 2 of them
  }

  void await_tasks() {
    wake.async_read_some(net::buffer(&wakes, sizeof wakes), [self = shared_from_this()](boost::system::error_code error, std::size_t) {
      if (error) return;  // closed
      self->await_tasks();
      self->run_tasks();
    });
  }

  void run_tasks() {
    std::vector<std::function<void()>> taken;
    {
      const std::lock_guard lock(tasks_mutex);
      taken.swap(tasks);
      tasks_posted = false;
    }
    for (const auto& task : taken) {
      try {
        task();
      } catch (const std::exception& error) {
        log::error("http: {}", error.what());
      }
    }
  }

  std::vector<std::shared_ptr<Connection>> snapshot() {
    const std::lock_guard lock(mutex);
    return {connections.begin(), connections.end()};
  }

  HttpHandler& handler;
  TransportState state;
  net::io_context io;
  net::executor_work_guard<net::io_context::executor_type> work;
  tcp::acceptor acceptor;
  net::steady_timer retry;
  net::posix::stream_descriptor wake;  // an eventfd: tasks are there
  std::uint64_t wakes = 0;             // what was read from it; nobody looks
  std::vector<std::thread> threads;
  std::atomic<bool> stopping{false};

  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_set<std::shared_ptr<Connection>> connections;

  std::mutex tasks_mutex;
  std::vector<std::function<void()>> tasks;
  bool tasks_posted = false;  // run_tasks is on its way
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandler& handler)
    : impl_(std::make_shared<Impl>(limits, handler)) {
  raise_descriptor_limit(limits.connections);
  impl_->listen(host, port);
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start(int io_threads) {
  impl_->accept();
  impl_->await_tasks();
  for (int i = 0; i < std::max(1, io_threads); ++i) {
    impl_->threads.emplace_back([impl = impl_.get()] {
      ask_slice(kPromptSlice);
      for (;;) {
        try {
          impl->io.run();
          return;
        } catch (const std::exception& error) {
          log::error("http: {}", error.what());  // one connection's failure must not end the server
        }
      }
    });
  }
}

int HttpServer::port() const { return impl_->acceptor.local_endpoint().port(); }

std::string HttpServer::url() const {
  const auto endpoint = impl_->acceptor.local_endpoint();
  const auto address = endpoint.address();
  if (address.is_v6()) return fmt::format("http://[{}]:{}", address.to_string(), endpoint.port());
  return fmt::format("http://{}:{}", address.to_string(), endpoint.port());
}

HttpCounters HttpServer::counters() const {
  const TransportState& state = impl_->state;
  HttpCounters result;
  result.connections = state.connections.load();
  result.accepted = state.accepted.load();
  result.timeouts = state.timeouts.load();
  result.disconnects = state.disconnects.load();
  result.slow_readers = state.slow_readers.load();
  result.active = state.active.load();
  return result;
}

void HttpServer::post(std::function<void()> task) { impl_->post(std::move(task)); }

int HttpServer::drain(std::chrono::milliseconds grace, const std::function<bool()>& hurry) {
  if (impl_->threads.empty()) return 0;
  impl_->stopping.store(true);
  net::post(impl_->io, [impl = impl_] {
    boost::system::error_code ignored;
    impl->acceptor.close(ignored);
    impl->retry.cancel();
  });
  for (const auto& connection : impl_->snapshot()) connection->close_when_idle();
  const auto deadline = std::chrono::steady_clock::now() + grace;
  int cut_off = 0;
  {
    std::unique_lock lock(impl_->mutex);
    while (impl_->state.active.load() > 0 && std::chrono::steady_clock::now() < deadline && !(hurry && hurry())) {
      impl_->changed.wait_for(lock, std::chrono::milliseconds(50));
    }
    cut_off = impl_->state.active.load();
  }
  for (const auto& connection : impl_->snapshot()) connection->abort();
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait_for(lock, std::chrono::seconds(5), [&] { return impl_->connections.empty(); });
  return cut_off;
}

void HttpServer::stop() {
  if (impl_->threads.empty()) return;
  drain(std::chrono::milliseconds(0));
  // With every socket and timer gone the threads run out of work by themselves, and no handler is left to hold a connection.
  net::post(impl_->io, [impl = impl_] {
    impl->run_tasks();
    boost::system::error_code ignored;
    impl->wake.cancel(ignored);  // closed with the server: a late post must not write to somebody else's descriptor
  });
  impl_->work.reset();
  for (int i = 0; i < 200 && !impl_->io.stopped(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  impl_->io.stop();
  for (auto& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace heirloom::server
