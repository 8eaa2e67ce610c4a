#include "server/test_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/log.h"

namespace heirloom::test {

RunningServer::RunningServer(Engine& engine, const server::ServerOptions& options) {
  log::set_level(log::Level::error);
  api_ = std::make_unique<server::ApiServer>(engine, options);
  transport_ = std::make_unique<server::HttpServer>("127.0.0.1", 0, options.http, *api_);
  api_->attach(*transport_);
  transport_->start(2);
}

RunningServer::~RunningServer() {
  transport_->drain(std::chrono::milliseconds(0));
  api_->stop();
  transport_->stop();
}

TestServer::TestServer(server::ServerOptions options_in, int context_tokens)
    : engine(context_tokens), options(std::move(options_in)), running_(engine, options) {}

bool TestServer::eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string Reply::header(const std::string& name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::vector<std::string> Reply::events() const {
  std::vector<std::string> result;
  for (std::size_t start = 0; start < body.size();) {
    auto end = body.find("\n\n", start);
    if (end == std::string::npos) end = body.size();
    std::string block = body.substr(start, end - start);
    if (const auto data = block.find("data: "); data != std::string::npos) result.push_back(block.substr(data + 6));
    start = end + 2;
  }
  return result;
}

std::vector<Json> Reply::json_events() const {
  std::vector<Json> result;
  for (const std::string& event : events()) {
    if (event != "[DONE]") result.push_back(Json::parse(event));
  }
  return result;
}

Client::Client(int port) {
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

Client::~Client() { close(); }

void Client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Client::half_close() { shutdown(fd_, SHUT_WR); }

void Client::send(const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const auto n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;  // refused early: the reply says why
    sent += static_cast<std::size_t>(n);
  }
}

void Client::request(const std::string& method, const std::string& path, const std::string& body, const std::string& extra_headers) {
  std::string head = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + extra_headers;
  if (method == "POST") head += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  send(head + "\r\n" + body);
}

std::string Client::read_some(std::chrono::milliseconds limit) {
  pollfd waiting{fd_, POLLIN, 0};
  if (fd_ < 0 || poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) return {};
  char buffer[65536];
  const auto n = recv(fd_, buffer, sizeof buffer, 0);
  return n > 0 ? std::string(buffer, static_cast<std::size_t>(n)) : std::string();
}

bool Client::closed_within(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return false;
    char buffer[65536];
    if (recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
  }
}

Reply Client::read_reply(std::chrono::milliseconds limit, bool head) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto more = [&] {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const std::string piece = read_some(std::max(left, std::chrono::milliseconds(0)));
    pending_ += piece;
    return !piece.empty();
  };
  Reply reply;
  std::size_t end = 0;
  for (;;) {
    while ((end = pending_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return reply;
    }
    if (!pending_.starts_with("HTTP/1.1 100")) break;
    pending_.erase(0, end + 4);
  }
  reply.status = std::stoi(pending_.substr(9, 3));
  std::size_t line = pending_.find("\r\n") + 2;
  while (line < end + 2) {
    const auto stop = pending_.find("\r\n", line);
    const auto colon = pending_.find(": ", line);
    std::string name = pending_.substr(line, colon - line);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    reply.headers.emplace_back(std::move(name), pending_.substr(colon + 2, stop - colon - 2));
    line = stop + 2;
  }
  pending_.erase(0, end + 4);
  if (head || reply.status == 204) return reply;
  if (reply.header("transfer-encoding") == "chunked") {
    for (;;) {
      std::size_t size_end = 0;
      while ((size_end = pending_.find("\r\n")) == std::string::npos) {
        if (!more()) return reply;
      }
      const std::size_t size = std::stoul(pending_.substr(0, size_end), nullptr, 16);
      while (pending_.size() < size_end + 2 + size + 2) {
        if (!more()) return reply;
      }
      reply.body += pending_.substr(size_end + 2, size);
      pending_.erase(0, size_end + 2 + size + 2);
      if (size == 0) return reply;
    }
  }
  const std::string length = reply.header("content-length");
  const std::size_t size = length.empty() ? std::string::npos : std::stoul(length);
  while (pending_.size() < size) {
    if (!more()) break;
  }
  reply.body = pending_.substr(0, std::min(size, pending_.size()));
  pending_.erase(0, reply.body.size());
  return reply;
}

Reply post(int port, const std::string& path, const Json& body, const std::string& extra_headers) {
  Client client(port);
  client.request("POST", path, body.dump(), extra_headers);
  return client.read_reply();
}

Reply get(int port, const std::string& path, const std::string& extra_headers) {
  Client client(port);
  client.request("GET", path, {}, extra_headers);
  return client.read_reply();
}

TEST(test_server, answers_health) {
  TestServer server;
  const Reply reply = get(server.port(), "/health");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json().at("status"), "ok");
}

}  // namespace heirloom::test
