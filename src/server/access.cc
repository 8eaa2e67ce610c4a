#include "server/access.h"

#include <algorithm>
#include <cctype>

namespace heirloom::server {
namespace {

/// Time depends on the length of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() == expected.size() ? 0u : 1u;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i] ^ other));
  }
  return difference == 0;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// "http://[::1]:8080" -> "[::1]"; empty if it is not an http(s) origin.
std::string origin_host(const std::string& origin) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    std::string host = origin.substr(scheme.size());
    const auto port = host.find(':', host.starts_with('[') ? host.find(']') : 0);
    return host.substr(0, port);
  }
  return {};
}

bool is_local(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost") || host == "[::1]") return true;
  // 127.0.0.0/8 as digits only: a name such as 127.0.0.1.example.com is not local.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace

AccessRules::AccessRules(std::vector<std::string> api_keys, std::vector<std::string> origins, bool loopback)
    : keys_(std::move(api_keys)), loopback_(loopback) {
  for (const std::string& origin : origins) {
    if (origin == "*") {
      any_origin_ = true;
    } else {
      origins_.push_back(lower(origin));
    }
  }
}

bool AccessRules::key_accepted(const HttpRequest& request) const {
  std::string_view given = request.header("x-api-key");
  if (given.empty()) {
    given = request.header("authorization");
    if (lower(given.substr(0, 7)) != "bearer ") return false;
    given.remove_prefix(7);
  }
  bool found = false;
  for (const std::string& key : keys_) found |= equal_in_constant_time(given, key);
  return found;
}

bool AccessRules::origin_accepted(const HttpRequest& request) const {
  const std::string origin = lower(request.header("origin"));
  if (origin.empty() || any_origin_) return true;
  if (std::find(origins_.begin(), origins_.end(), origin) != origins_.end()) return true;
  const std::string host = origin_host(origin);
  if (is_local(host)) return true;
  if (loopback_) return false;
  const std::string own = lower(request.header("host"));
  return origin == "http://" + own || origin == "https://" + own;
}

Headers AccessRules::cors_headers(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !origin_accepted(request)) return {};
  if (any_origin_) return {{"Access-Control-Allow-Origin", "*"}};
  return {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
}

}  // namespace heirloom::server
