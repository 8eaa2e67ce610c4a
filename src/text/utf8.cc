#include "text/utf8.h"

namespace heirloom::text {

Utf8Char decode_utf8(std::string_view text, std::size_t position) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const std::size_t left = text.size() - position;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  // Well-formed byte sequences: Unicode Standard, table 3-7. Only the second byte's range depends on the lead.
  int count = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  char32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    count = 1, value = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    count = 2, value = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    count = 3, value = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {kReplacement, 1, false, false};
  }
  for (int i = 1; i <= count; ++i) {
    if (static_cast<std::size_t>(i) >= left) return {kReplacement, static_cast<std::uint8_t>(i), false, true};
    const unsigned char next = byte(static_cast<std::size_t>(i));
    if (next < low || next > high) return {kReplacement, static_cast<std::uint8_t>(i), false, false};
    value = value << 6 | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {value, static_cast<std::uint8_t>(count + 1), true, false};
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t b) { out.push_back(static_cast<char>(static_cast<unsigned char>(b))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Char c = decode_utf8(text, i);
    if (!c.valid) return false;
    i += c.size;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (c.valid) {
      out.append(text, i, c.size);
    } else {
      out += kReplacementUtf8;
    }
    i += c.size;
  }
  return out;
}

std::size_t count_code_points(std::string_view valid) noexcept {
  std::size_t count = 0;
  for (const char c : valid) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace heirloom::text
