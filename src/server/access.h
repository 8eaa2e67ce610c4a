// Who may use the API: keys, and origins of browsers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_types.h"

namespace heirloom::server {

class AccessRules {
 public:
  /// `loopback`: the server listens on this machine only. `origins`: allowed besides local ones; "*" = any.
  AccessRules(std::vector<std::string> api_keys, std::vector<std::string> origins, bool loopback);

  bool needs_key() const { return !keys_.empty(); }
  /// "Authorization: Bearer KEY" or "x-api-key: KEY"; compared in constant time.
  bool key_accepted(const HttpRequest& request) const;

  /// A browser's request may come from: no Origin at all; local pages; pages of this very server (unless it is bound to
  /// loopback, where another name for it means DNS rebinding); configured origins.
  bool origin_accepted(const HttpRequest& request) const;
  /// Headers that let the page read the answer; empty if the request has no origin or a refused one. Never allows
  /// credentials: keys travel in headers that the page sets itself.
  Headers cors_headers(const HttpRequest& request) const;

 private:
  std::vector<std::string> keys_;
  std::vector<std::string> origins_;
  bool any_origin_ = false;
  bool loopback_;
};

}  // namespace heirloom::server
