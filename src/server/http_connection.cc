#include "server/http_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace heirloom::server {
namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = net::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t kReadPiece = 16 << 10;
// What a client may send ahead (pipelined) while its answer is made; beyond it the socket is not read, so TCP holds it back.
constexpr std::size_t kAheadLimit = 64 << 10;
constexpr int kSendBuffer = 256 << 10;
constexpr std::size_t kJoinedPiece = 16 << 10;
// A refused body is read and thrown away for a while, because closing with unread bytes makes TCP discard our answer.
constexpr auto kLingerTime = std::chrono::seconds(5);
// Slowest body that is tolerated as a whole; a stalled one ends earlier, after limits.stall.
constexpr std::uint64_t kMinBodyBytesPerSecond = 16 << 10;

std::string status_line_and_headers(int status, const Headers& headers, unsigned version) {
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  std::string out = fmt::format("HTTP/1.{} {} {}\r\n", version % 10, status, std::string_view(reason.data(), reason.size()));
  for (const auto& [name, value] : headers) {
    out += name;
    out += ": ";
    for (const char c : value) {
      if (c != '\r' && c != '\n') out += c;  // a value can never start a header of its own
    }
    out += "\r\n";
  }
  return out;
}

class ConnectionImpl;

/// The responder of one request. The connection only knows it weakly: a handler that drops it without an answer makes the
/// destructor send a 500, so no client waits for ever.
class Exchange final : public HttpResponder, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<ConnectionImpl> connection, std::uint64_t serial)
      : connection_(std::move(connection)), serial_(serial) {}
  ~Exchange() override;

  void respond(HttpResponse response) override;
  void begin_stream(int status, Headers headers) override;
  bool write(std::string piece) override;
  void end_stream() override;
  void on_disconnect(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  void disconnected() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback.swap(callback_);
    }
    if (callback) callback();
  }

  void completed() {
    const std::lock_guard lock(mutex_);
    callback_ = nullptr;  // breaks the cycle request -> responder -> request
  }

 private:
  std::shared_ptr<ConnectionImpl> connection_;
  std::uint64_t serial_;
  std::atomic<bool> answered_{false};
  std::atomic<bool> streaming_{false};
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  bool gone_ = false;
  std::function<void()> callback_;
};

class ConnectionImpl final : public Connection, public std::enable_shared_from_this<ConnectionImpl> {
 public:
  ConnectionImpl(tcp::socket socket, TransportState& state, std::shared_ptr<ConnectionOwner> owner)
      : socket_(std::move(socket)),
        state_(state),
        owner_(std::move(owner)),
        read_timer_(socket_.get_executor()),
        write_timer_(socket_.get_executor()) {
    error_code ignored;
    const auto peer = socket_.remote_endpoint(ignored);
    if (!ignored) peer_ = peer.address().to_string();
    socket_.non_blocking(true, ignored);  // for pump(); what is asynchronous is not concerned
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(net::socket_base::keep_alive(true), ignored);
    // Left to itself the kernel queues megabytes for a client that does not read; token streams need little.
    socket_.set_option(net::socket_base::send_buffer_size(kSendBuffer), ignored);
    // A peer that vanished without a word (cable, power): give up on unacknowledged data after the stall time.
    const int timeout_ms = static_cast<int>(state_.limits.stall.count());
    setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
  }

  void start() override {
    net::post(socket_.get_executor(), [self = shared_from_this()] { self->wait_for_request(true); });
  }

  void refuse_connection() override {
    net::post(socket_.get_executor(), [self = shared_from_this()] {
      self->keep_alive_ = false;
      self->version_ = 11;
      self->send_response(self->state_.handler->refusal({}, 503, "too many connections; try again later"), true);
    });
  }

  void close_when_idle() override {
    net::post(socket_.get_executor(), [self = shared_from_this()] {
      self->draining_ = true;
      if (self->phase_ == Phase::idle) self->close();
    });
  }

  void abort() override {
    net::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
  }

  // Called by Exchange, on any thread.
  void post_response(std::uint64_t serial, HttpResponse response) {
    net::post(socket_.get_executor(), [self = shared_from_this(), serial, response = std::move(response)]() mutable {
      if (self->current(serial)) self->send_response(std::move(response), false);
    });
  }
  void post_begin(std::uint64_t serial, int status, Headers headers) {
    net::post(socket_.get_executor(), [self = shared_from_this(), serial, status, headers = std::move(headers)]() mutable {
      if (self->current(serial)) self->send_stream_head(status, std::move(headers));
    });
  }
  /// Pieces wait in a list of their own with one task to fetch them all: a task for each would keep the strand so busy with a
  /// quick writer that the socket's completions and timers, which go through the same strand, wait ever longer.
  bool post_piece(std::uint64_t serial, std::string piece) {
    if (closed_.load(std::memory_order_relaxed)) return false;
    const std::uint64_t queued = queued_bytes_.fetch_add(piece.size()) + piece.size();
    const bool overflow = queued > state_.limits.queue_bytes;
    bool post = false;
    {
      const std::lock_guard lock(arriving_mutex_);
      arriving_.push_back({serial, std::move(piece)});
      arriving_overflow_ |= overflow;
      post = !std::exchange(arriving_posted_, true);
    }
    if (post) net::post(socket_.get_executor(), [self = shared_from_this()] { self->take_arriving(); });
    return !overflow;
  }
  void post_end(std::uint64_t serial) {
    net::post(socket_.get_executor(), [self = shared_from_this(), serial] {
      if (self->current(serial)) self->end_stream();
    });
  }
  void post_abandoned(std::uint64_t serial) {
    net::post(socket_.get_executor(), [self = shared_from_this(), serial] {
      if (!self->current(serial)) return;
      if (self->streaming_) {
        self->close();
      } else {
        self->send_response(self->state_.handler->refusal({}, 500, "internal error: the request was dropped"), false);
      }
    });
  }

 private:
  enum class Phase { idle, head, body, handling, closing };

  bool current(std::uint64_t serial) const {
    return phase_ == Phase::handling && serial == serial_ && !finishing_ && !closed_.load();
  }

  // ---- timers -------------------------------------------------------------------------------------------------------

  void arm(net::steady_timer& timer, std::chrono::steady_clock::duration time) {
    timer.expires_after(time);
    timer.async_wait([weak = weak_from_this(), &timer](error_code error) {
      const auto self = weak.lock();
      if (error || !self || timer.expiry() > std::chrono::steady_clock::now()) return;
      if (self->phase_ != Phase::idle) self->state_.timeouts.fetch_add(1);
      self->close();
    });
  }
  static void disarm(net::steady_timer& timer) {
    timer.expires_at(std::chrono::steady_clock::time_point::max());
  }

  // ---- reading ------------------------------------------------------------------------------------------------------

  void wait_for_request(bool first) {
    if (closed_.load()) return;
    phase_ = Phase::idle;
    if (draining_) return close();
    arm(read_timer_, first ? state_.limits.stall : state_.limits.idle);
    advance();
  }

  /// The one place that reads: a request's bytes, the next request's, or the client's departure while its answer is made.
  void read_more() {
    if (reading_ || closed_.load()) return;
    if (phase_ == Phase::handling && input_.size() >= kAheadLimit) return;
    reading_ = true;
    socket_.async_read_some(net::buffer(incoming_), [self = shared_from_this()](error_code error, std::size_t bytes) {
      self->reading_ = false;
      if (error) {
        // End of input counts as gone even if the peer only half-closed: that is how a proxy passes on that its client left.
        if (self->phase_ == Phase::handling && !self->closed_.load()) self->state_.disconnects.fetch_add(1);
        return self->close();
      }
      if (self->phase_ == Phase::closing) return self->read_more();  // lingering: thrown away
      self->input_.append(self->incoming_.data(), bytes);
      if (self->phase_ == Phase::handling) return self->read_more();
      self->advance();
    });
  }

  /// Takes what has been read as far as it goes.
  void advance() {
    if (phase_ == Phase::idle) {
      if (input_.empty()) return read_more();
      phase_ = Phase::head;
      arm(read_timer_, state_.limits.stall);
      parser_.emplace();
      parser_->header_limit(static_cast<std::uint32_t>(state_.limits.header_bytes));
      // The body is checked against our limits, which know more. (Beast 1.74 takes "none" for a limit of nothing.)
      parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
    }
    error_code error;
    if (phase_ == Phase::head) {
      parse(error);
      if (error == http::error::need_more) return read_more();
      if (error) return head_failed(error);
      return head_done();
    }
    while (!parser_->is_done()) {
      error = {};
      if (!input_.empty()) parse(error);
      const bool starved = input_.empty() || error == http::error::need_more;
      if (error && error != http::error::need_more) return refuse(400, fmt::format("malformed HTTP body: {}", error.message()));
      const std::uint64_t size = parser_->get().body().size();
      if (size > state_.limits.body_bytes) return refuse_body();
      if (size > reserved_ && !reserve_body(size - reserved_)) {
        return refuse(503, "the server is receiving too many large requests; try again later");
      }
      if (!starved || parser_->is_done()) continue;
      const auto allowed = state_.limits.stall + std::chrono::seconds(size / kMinBodyBytesPerSecond);
      if (std::chrono::steady_clock::now() - body_started_ > allowed) {
        state_.timeouts.fetch_add(1);
        return close();
      }
      arm(read_timer_, state_.limits.stall);
      return read_more();
    }
    dispatch();
  }

  void parse(error_code& error) {
    const std::size_t used = parser_->put(net::buffer(input_), error);
    input_.erase(0, used);
  }

  void head_failed(error_code error) {
    if (error == http::error::header_limit) {
      return refuse(431, fmt::format("request headers are larger than {} bytes", state_.limits.header_bytes));
    }
    refuse(400, fmt::format("malformed HTTP request: {}", error.message()));
  }

  void head_done() {
    const auto& message = parser_->get();
    request_ = HttpRequest{};
    request_.id = state_.next_id.fetch_add(1);
    request_.peer = peer_;
    request_.method.assign(message.method_string().data(), message.method_string().size());
    const std::string_view target(message.target().data(), message.target().size());
    const auto question = target.find('?');
    request_.path = target.substr(0, question);
    if (question != std::string_view::npos) request_.query = target.substr(question + 1);
    for (const auto& field : message) {
      std::string name(field.name_string().data(), field.name_string().size());
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      request_.headers.emplace_back(std::move(name), std::string(field.value().data(), field.value().size()));
    }
    version_ = message.version();
    keep_alive_ = message.keep_alive();
    head_only_ = message.method() == http::verb::head;

    if (auto early = state_.handler->precheck(request_)) return refuse(std::move(*early));
    if (parser_->is_done()) return dispatch();
    if (const auto length = parser_->content_length_remaining()) {
      if (*length > state_.limits.body_bytes) return refuse_body();
      if (!reserve_body(*length)) return refuse(503, "the server is receiving too many large requests; try again later");
    }
    if (beast::iequals(message[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      arm(write_timer_, state_.limits.stall);
      net::async_write(socket_, net::buffer(kContinue.data(), kContinue.size()),
                       [self = shared_from_this()](error_code error, std::size_t) {
                         disarm(self->write_timer_);
                         if (error) return self->close();
                         self->start_body();
                       });
      return;
    }
    start_body();
  }

  void start_body() {
    phase_ = Phase::body;
    body_started_ = std::chrono::steady_clock::now();
    advance();
  }

  bool reserve_body(std::uint64_t bytes) {
    if (state_.body_bytes.fetch_add(bytes) + bytes > state_.limits.all_bodies_bytes) {
      state_.body_bytes.fetch_sub(bytes);
      return false;
    }
    reserved_ += bytes;
    return true;
  }

  void release_body() {
    state_.body_bytes.fetch_sub(reserved_);
    reserved_ = 0;
  }

  void dispatch() {
    request_.body = std::move(parser_->get().body());
    parser_.reset();
    release_body();
    disarm(read_timer_);
    phase_ = Phase::handling;
    finishing_ = false;
    streaming_ = false;
    ++serial_;
    state_.active.fetch_add(1);
    counted_active_ = true;
    auto exchange = std::make_shared<Exchange>(shared_from_this(), serial_);
    exchange_ = exchange;
    read_more();
    state_.handler->handle(std::move(request_), std::move(exchange));
  }

  // ---- refusing -----------------------------------------------------------------------------------------------------

  void refuse_body() {
    refuse(413, fmt::format("request body is larger than {} bytes", state_.limits.body_bytes));
  }
  void refuse(int status, const std::string& message) { refuse(state_.handler->refusal(request_, status, message)); }

  /// Answers without having read the body. Keeps the connection only if there is no body.
  void refuse(HttpResponse response) {
    release_body();
    const bool complete = parser_ && parser_->is_header_done() && parser_->is_done();
    if (!complete) keep_alive_ = false;
    disarm(read_timer_);
    phase_ = Phase::handling;
    finishing_ = false;
    streaming_ = false;
    ++serial_;
    send_response(std::move(response), !complete);
  }

  // ---- writing ------------------------------------------------------------------------------------------------------

  void send_response(HttpResponse response, bool linger) {
    linger_ = linger;
    const bool bodyless = response.status == 204 || response.status == 304;
    if (!bodyless) response.headers.emplace_back("Content-Length", std::to_string(response.body.size()));
    add_connection_header(response.headers);
    std::string head = status_line_and_headers(response.status, response.headers, version_) + "\r\n";
    queue_bytes(std::move(head));
    if (!head_only_ && !bodyless && !response.body.empty()) queue_bytes(std::move(response.body));
    finishing_ = true;
    pump();
  }

  void send_stream_head(int status, Headers headers) {
    streaming_ = true;
    chunked_ = version_ >= 11;
    if (chunked_) {
      headers.emplace_back("Transfer-Encoding", "chunked");
    } else {
      keep_alive_ = false;
    }
    add_connection_header(headers);
    queue_bytes(status_line_and_headers(status, headers, version_) + "\r\n");
    pump();
  }

  void add_connection_header(Headers& headers) const {
    if (!keep_alive_ || draining_) {
      headers.emplace_back("Connection", "close");
    } else if (version_ == 10) {
      headers.emplace_back("Connection", "keep-alive");
    }
  }

  /// Takes over what post_piece has left; its size is already counted in queued_bytes_.
  void take_arriving() {
    std::vector<Arriving> arrived;
    bool overflow = false;
    {
      const std::lock_guard lock(arriving_mutex_);
      arrived.swap(arriving_);
      overflow = std::exchange(arriving_overflow_, false);
      arriving_posted_ = false;
    }
    bool wanted = false;
    for (const Arriving& one : arrived) {
      if (!current(one.serial) || one.piece.empty() || head_only_) {
        queued_bytes_.fetch_sub(one.piece.size());
        continue;
      }
      wanted = true;
      if (chunked_) {
        const std::string head = fmt::format("{:x}\r\n", one.piece.size());
        queued_bytes_.fetch_add(head.size() + 2);
        append_out(head + one.piece + "\r\n");
      } else {
        append_out(one.piece);
      }
    }
    if (overflow && wanted) {
      state_.slow_readers.fetch_add(1);
      return close();
    }
    if (wanted) pump();
  }

  /// Small pieces join the last buffer, unless that is being written.
  void append_out(std::string_view bytes) {
    if (out_.size() > writing_pieces_.size() && out_.back().size() < kJoinedPiece) {
      out_.back() += bytes;
    } else {
      out_.emplace_back(bytes);
    }
  }

  void queue_bytes(std::string bytes) {
    queued_bytes_.fetch_add(bytes.size());
    out_.push_back(std::move(bytes));
  }

  void end_stream() {
    if (chunked_ && !head_only_) queue_bytes("0\r\n\r\n");
    finishing_ = true;
    pump();
  }

  /// Writes what is queued: at once what the kernel takes, the rest when it has room again. Each call of the socket takes everything
  /// that has piled up since the last.
  void pump() {
    if (writing_ || closed_.load()) return;
    while (!out_.empty()) {
      writing_pieces_.clear();
      for (std::size_t i = 0; i < out_.size() && i < 64; ++i) writing_pieces_.push_back(net::buffer(out_[i]));
      if (offset_ > 0) writing_pieces_[0] += offset_;
      error_code error;
      const std::size_t bytes = socket_.write_some(writing_pieces_, error);
      if (error == net::error::would_block || error == net::error::try_again) {
        write_later();
        return;
      }
      writing_pieces_.clear();
      if (!written(error, bytes)) return;
    }
    if (!finishing_ || std::exchange(done_posted_, true)) return;
    // Not from here: the next request may lie in input_ already, and the one after it.
    net::post(socket_.get_executor(), [self = shared_from_this()] {
      self->done_posted_ = false;
      if (!self->closed_.load()) self->response_done();
    });
  }

  void write_later() {
    writing_ = true;
    arm(write_timer_, state_.limits.stall);
    socket_.async_write_some(writing_pieces_, [self = shared_from_this()](error_code error, std::size_t bytes) {
      self->writing_ = false;
      self->writing_pieces_.clear();
      disarm(self->write_timer_);
      if (self->written(error, bytes)) self->pump();
    });
  }

  /// Forgets what the socket has taken; false if the connection is no more.
  bool written(error_code error, std::size_t bytes) {
    if (error) {
      if (!closed_.load() && phase_ == Phase::handling) state_.disconnects.fetch_add(1);
      close();
      return false;
    }
    queued_bytes_.fetch_sub(bytes);
    bytes += offset_;
    offset_ = 0;
    while (!out_.empty() && bytes >= out_.front().size()) {
      bytes -= out_.front().size();
      out_.pop_front();
    }
    offset_ = bytes;
    return true;
  }

  void response_done() {
    if (const auto exchange = exchange_.lock()) exchange->completed();
    exchange_.reset();
    count_inactive();
    finishing_ = false;
    if (linger_) return linger();
    if (!keep_alive_ || draining_) return close();
    parser_.reset();
    wait_for_request(false);
  }

  void linger() {
    phase_ = Phase::closing;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    arm(read_timer_, kLingerTime);
    read_more();
  }

  void count_inactive() {
    if (!counted_active_) return;
    counted_active_ = false;
    state_.active.fetch_sub(1);
    owner_->response_finished();
  }

  void close() {
    if (closed_.exchange(true)) return;
    phase_ = Phase::closing;
    const auto exchange = exchange_.lock();
    exchange_.reset();
    release_body();
    read_timer_.cancel();
    write_timer_.cancel();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
    count_inactive();
    if (exchange) exchange->disconnected();
    owner_->connection_closed(shared_from_this());
  }

  tcp::socket socket_;
  TransportState& state_;
  std::shared_ptr<ConnectionOwner> owner_;  // keeps state_ alive
  std::string peer_;
  net::steady_timer read_timer_;
  net::steady_timer write_timer_;
  std::string input_;                        // read and not yet parsed
  std::array<char, kReadPiece> incoming_{};  // where a pending read puts its bytes
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;
  std::weak_ptr<Exchange> exchange_;

  Phase phase_ = Phase::idle;
  std::uint64_t serial_ = 0;  // of the request being answered
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool head_only_ = false;
  bool draining_ = false;    // the server is stopping
  bool reading_ = false;     // a read is pending
  bool streaming_ = false;
  bool chunked_ = false;
  bool finishing_ = false;   // the whole response is queued
  bool done_posted_ = false; // response_done is on its way
  bool linger_ = false;
  bool counted_active_ = false;
  std::uint64_t reserved_ = 0;  // of state_.body_bytes
  std::chrono::steady_clock::time_point body_started_;

  struct Arriving {
    std::uint64_t serial;
    std::string piece;
  };
  std::mutex arriving_mutex_;
  std::vector<Arriving> arriving_;    // from post_piece, not yet in out_
  bool arriving_overflow_ = false;    // the queue limit was passed
  bool arriving_posted_ = false;      // take_arriving is on its way

  std::deque<std::string> out_;
  std::size_t offset_ = 0;  // already written bytes of out_.front()
  bool writing_ = false;
  std::vector<net::const_buffer> writing_pieces_;  // the first of out_, while they are being written
  std::atomic<std::uint64_t> queued_bytes_{0};
  std::atomic<bool> closed_{false};
};

Exchange::~Exchange() {
  if (!answered_.load() || (streaming_.load() && !ended_.load())) connection_->post_abandoned(serial_);
}

void Exchange::respond(HttpResponse response) {
  if (!answered_.exchange(true)) connection_->post_response(serial_, std::move(response));
}

void Exchange::begin_stream(int status, Headers headers) {
  if (answered_.exchange(true)) return;
  streaming_.store(true);
  connection_->post_begin(serial_, status, std::move(headers));
}

bool Exchange::write(std::string piece) { return connection_->post_piece(serial_, std::move(piece)); }

void Exchange::end_stream() {
  if (!ended_.exchange(true)) connection_->post_end(serial_);
}

}  // namespace

std::shared_ptr<Connection> make_connection(tcp::socket socket, TransportState& state, std::shared_ptr<ConnectionOwner> owner) {
  return std::make_shared<ConnectionImpl>(std::move(socket), state, std::move(owner));
}

}  // namespace heirloom::server
