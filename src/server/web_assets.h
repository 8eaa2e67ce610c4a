// The files of web/, compiled into the program (cmake/server.cmake).
#pragma once

#include <string_view>

namespace heirloom::server {

struct WebAsset {
  std::string_view name;  // "index.html"
  std::string_view type;  // media type
  std::string_view bytes;
};

/// nullptr if there is no such file.
const WebAsset* find_web_asset(std::string_view name);

}  // namespace heirloom::server
