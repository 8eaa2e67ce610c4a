#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace heirloom::text {
namespace {

struct Alphabet {
  std::array<std::string, 256> spelling;
  std::array<std::int16_t, 512> byte_of{};

  Alphabet() {
    byte_of.fill(-1);
    char32_t next = 256;  // bytes without a printable Latin-1 character take U+0100, U+0101, ... in order
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      append_utf8(spelling[static_cast<std::size_t>(b)], c);
      byte_of[c] = static_cast<std::int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_to_alphabet(unsigned char byte) { return alphabet().spelling[byte]; }

std::optional<std::string> alphabet_to_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t i = 0; i < token.size();) {
    const Utf8Char c = decode_utf8(token, i);
    if (!c.valid || c.code_point >= 512 || alphabet().byte_of[c.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(alphabet().byte_of[c.code_point])));
    i += c.size;
  }
  return bytes;
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string token;
  for (const char b : bytes) token += byte_to_alphabet(static_cast<unsigned char>(b));
  return token;
}

}  // namespace heirloom::text
