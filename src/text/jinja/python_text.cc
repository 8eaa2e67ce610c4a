#include "text/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <unordered_set>

#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

/// Size of the last character of valid, non-empty UTF-8.
std::size_t last_size(std::string_view text) noexcept {
  std::size_t size = 1;
  while ((static_cast<unsigned char>(text[text.size() - size]) & 0xC0) == 0x80) ++size;
  return size;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t size;
    if (!is_python_space(decode_valid_utf8(text.data() + at, size))) break;
    at += size;
  }
  return at;
}

std::size_t skip_word(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t size;
    if (is_python_space(decode_valid_utf8(text.data() + at, size))) break;
    at += size;
  }
  return at;
}

char32_t to_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t to_lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }
char32_t to_title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))); }

bool is_cased(char32_t c) { return to_upper(c) != c || to_lower(c) != c; }

/// A capital sigma at the end of a word has a lower case of its own (Unicode SpecialCasing, Final_Sigma).
bool is_final_sigma(std::string_view s, std::size_t at, bool after_cased) {
  std::size_t size;
  return after_cased && s.substr(at, 2) == "\xCE\xA3" && (at + 2 >= s.size() || !is_cased(decode_valid_utf8(s.data() + at + 2, size)));
}

}  // namespace

bool is_python_space(char32_t c) noexcept {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view python_rstrip(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t n = last_size(text);
    std::size_t size;
    if (!is_python_space(decode_valid_utf8(text.data() + text.size() - n, size))) break;
    text.remove_suffix(n);
  }
  return text;
}

Text strip(const Text& text, bool left, bool right, const std::string* chars) {
  std::unordered_set<char32_t> set;
  if (chars) {
    for (std::size_t i = 0, size; i < chars->size(); i += size) set.insert(decode_valid_utf8(chars->data() + i, size));
  }
  const auto drops = [&](char32_t c) { return chars ? set.contains(c) : is_python_space(c); };
  const std::string_view s = text.str();
  std::size_t begin = 0;
  std::size_t end = s.size();
  std::size_t size;
  while (left && begin < end && drops(decode_valid_utf8(s.data() + begin, size))) begin += size;
  while (right && end > begin) {
    const std::size_t n = last_size(s.substr(0, end));
    if (!drops(decode_valid_utf8(s.data() + end - n, size))) break;
    end -= n;
  }
  return text.slice(begin, end);
}

std::size_t byte_offset(std::string_view text, std::size_t index) noexcept {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  }
  return at;
}

bool is_letter(char32_t c) noexcept {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_word(char32_t c) noexcept {
  if (c < 0x80) return is_letter(c) || (c >= '0' && c <= '9') || c == '_';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return is_letter(c) || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}
bool is_upper(char32_t c) noexcept { return to_lower(c) != c; }
bool is_lower(char32_t c) noexcept { return to_upper(c) != c; }

Text change_case(const Text& text, Case wanted) {
  Text out;
  const std::string_view s = text.str();
  bool first = true;     // capitalize: the first character of the text
  bool in_word = false;  // the previous character was cased
  std::string changed;
  for (std::size_t i = 0, size; i < s.size(); i += size) {
    const char32_t c = decode_valid_utf8(s.data() + i, size);
    const bool raise = wanted == Case::upper || (wanted == Case::capitalize && first) || (wanted == Case::title && !in_word);
    changed.clear();
    if (raise && c == 0xDF) {  // the one common letter whose upper case is two
      changed = wanted == Case::upper ? "SS" : "Ss";
    } else if (!raise && is_final_sigma(s, i, in_word)) {
      append_utf8(changed, 0x3C2);
    } else {
      append_utf8(changed, !raise ? to_lower(c) : wanted == Case::upper ? to_upper(c) : to_title(c));
    }
    out.append(changed, text.any_tainted(i, i + size));
    in_word = is_cased(c);
    first = false;
  }
  return out;
}

std::vector<Text> split(const Text& text, std::string_view separator, std::int64_t max_splits, bool from_right) {
  std::vector<Text> parts;
  const std::string_view s = text.str();
  const auto may = [&] { return max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits; };
  if (from_right) {
    // Only the limited form differs from a split from the left.
    std::size_t end = s.size();
    while (max_splits != 0 && end > 0) {
      std::size_t at;
      std::size_t after;
      if (separator.empty()) {
        end = python_rstrip(s.substr(0, end)).size();
        if (end == 0 || !may()) break;
        at = end;
        while (at > 0) {
          const std::size_t n = last_size(s.substr(0, at));
          std::size_t size;
          if (is_python_space(decode_valid_utf8(s.data() + at - n, size))) break;
          at -= n;
        }
        parts.push_back(text.slice(at, end));
        end = at;
        continue;
      }
      if (!may() || (at = s.substr(0, end).rfind(separator)) == std::string_view::npos) break;
      after = at + separator.size();
      parts.push_back(text.slice(after, end));
      end = at;
      if (end == 0) break;
    }
    if (separator.empty()) end = python_rstrip(s.substr(0, end)).size();
    if (!separator.empty() || end > 0) parts.push_back(text.slice(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  if (separator.empty()) {
    for (std::size_t at = skip_spaces(s, 0); at < s.size();) {
      if (!may()) {
        parts.push_back(text.slice(at, s.size()));  // trailing blanks stay
        break;
      }
      const std::size_t end = skip_word(s, at);
      parts.push_back(text.slice(at, end));
      at = skip_spaces(s, end);
    }
    return parts;
  }
  std::size_t begin = 0;
  for (std::size_t at; may() && (at = s.find(separator, begin)) != std::string_view::npos;) {
    parts.push_back(text.slice(begin, at));
    begin = at + separator.size();
  }
  parts.push_back(text.slice(begin, s.size()));
  return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  const std::string_view s = text.str();
  std::size_t begin = 0;
  for (std::size_t i = 0, size; i < s.size(); i += size) {
    const char32_t c = decode_valid_utf8(s.data() + i, size);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    std::size_t end = i + size;
    if (c == '\r' && end < s.size() && s[end] == '\n') size = 2, ++end;
    lines.push_back(text.slice(begin, keep_ends ? end : i));
    begin = end;
  }
  if (begin < s.size()) lines.push_back(text.slice(begin, s.size()));
  return lines;
}

Text replace(const Text& text, std::string_view from, const Text& to, std::int64_t count) {
  Text out;
  const std::string_view s = text.str();
  std::size_t begin = 0;
  if (from.empty()) {  // between all characters, and at both ends
    for (std::size_t size; count != 0; begin += size, --count) {
      out.append(to);
      if (begin >= s.size()) return out;
      decode_valid_utf8(s.data() + begin, size);
      out.append(text, begin, begin + size);
    }
  } else {
    for (std::size_t at; count != 0 && (at = s.find(from, begin)) != std::string_view::npos; --count) {
      out.append(text, begin, at);
      out.append(to);
      begin = at + from.size();
    }
  }
  out.append(text, begin, s.size());
  return out;
}

}  // namespace heirloom::text::jinja
