#include "server/base64.h"

#include <array>
#include <cstdint>

namespace heirloom::server {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::int8_t, 256> make_values() {
  std::array<std::int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::int8_t>(i);
  values['-'] = 62;
  values['_'] = 63;
  return values;
}

constexpr auto kValues = make_values();

}  // namespace

std::optional<std::vector<std::byte>> base64_decode(std::string_view text) {
  std::vector<std::byte> out;
  out.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t bits = 0;
  int count = 0;      // characters of the current group of four
  int padding = 0;
  for (const char c : text) {
    if (c == '\n' || c == '\r' || c == ' ' || c == '\t') continue;
    if (c == '=') {
      if (++padding > 2) return std::nullopt;
      continue;
    }
    const int value = kValues[static_cast<unsigned char>(c)];
    if (value < 0 || padding > 0) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if (++count == 4) {
      for (const int shift : {16, 8, 0}) out.push_back(static_cast<std::byte>(bits >> shift & 0xff));
      bits = 0;
      count = 0;
    }
  }
  if (count == 1 || (padding > 0 && count + padding != 4)) return std::nullopt;
  if (count == 2) out.push_back(static_cast<std::byte>(bits >> 4 & 0xff));
  if (count == 3) {
    out.push_back(static_cast<std::byte>(bits >> 10 & 0xff));
    out.push_back(static_cast<std::byte>(bits >> 2 & 0xff));
  }
  return out;
}

std::string base64_encode(std::span<const std::byte> bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < n ? std::to_integer<std::uint32_t>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) out += j <= n ? kAlphabet[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

}  // namespace heirloom::server
