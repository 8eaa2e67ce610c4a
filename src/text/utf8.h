// UTF-8 at the byte level: decoding one code point with the WHATWG/Unicode "maximal subpart" rule for broken input,
// encoding, validation. Everything above this file works on valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heirloom::text {

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

struct Utf8Char {
  char32_t code_point;  // kReplacement when !valid
  std::uint8_t size;    // bytes consumed, 1..4; for broken input the maximal subpart
  bool valid;
  bool truncated;  // broken only because the input ends: more bytes could complete it
};

/// The code point at text[position]; position < text.size().
Utf8Char decode_utf8(std::string_view text, std::size_t position) noexcept;

/// The code point at text[position] of text known to be valid UTF-8; no checks.
inline char32_t decode_valid_utf8(const char* p, std::size_t& size) noexcept {
  const auto b = [p](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = b(0);
  if (lead < 0x80) return size = 1, lead;
  if (lead < 0xE0) return size = 2, (lead & 0x1F) << 6 | (b(1) & 0x3F);
  if (lead < 0xF0) return size = 3, (lead & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F);
  return size = 4, (lead & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F);
}

void append_utf8(std::string& out, char32_t code_point);

bool is_valid_utf8(std::string_view text) noexcept;

/// `text` with every maximal broken part replaced by U+FFFD, as Python's bytes.decode("utf-8", "replace") does.
std::string replace_invalid_utf8(std::string_view text);

/// Number of code points in valid UTF-8.
std::size_t count_code_points(std::string_view valid) noexcept;

}  // namespace heirloom::text
