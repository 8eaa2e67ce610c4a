// Names taken from a file or a request, made fit for one line of a message.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace heirloom {

/// `text` with control characters, quotes, backslashes and bytes above 0x7e written as \xNN, cut after
/// `limit` bytes.
inline std::string printable(std::string_view text, std::size_t limit = 100) {
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e || c == '"' || c == '\\') {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > limit) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

}  // namespace heirloom
