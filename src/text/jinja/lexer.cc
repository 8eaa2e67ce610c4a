#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

/// "\r\n" and "\r" become "\n"; one line break at the very end is dropped (keep_trailing_newline is off).
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(is_valid_utf8(source) ? source : replace_invalid_utf8(source))) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    push(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& message) const {
    fail(ErrorKind::bad_file, "chat template line {}: {}", line_, message);
  }
  void push(TokenKind kind, std::string value) { tokens_.push_back({kind, std::move(value), line_}); }
  bool looking_at(std::string_view what, std::size_t at) const { return source_.compare(at, what.size(), what) == 0; }
  char peek(std::size_t at) const { return at < source_.size() ? source_[at] : '\0'; }

  std::size_t skip_space(std::size_t at) const {
    while (at < source_.size()) {
      std::size_t size;
      if (!is_python_space(decode_valid_utf8(source_.data() + at, size))) break;
      at += size;
    }
    return at;
  }

  void advance_to(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  /// Template text up to `end`, which a tag with this sign follows. '-' strips all white space before the tag; without a
  /// sign, a block or comment that stands alone on its line loses the blanks before it (lstrip_blocks).
  void data(std::size_t end, char sign, bool is_variable) {
    std::size_t keep = end;
    if (sign == '-') {
      keep = at_ + python_rstrip(std::string_view(source_).substr(at_, end - at_)).size();
    } else if (sign != '+' && !is_variable) {
      const std::size_t newline = end > at_ ? source_.rfind('\n', end - 1) : std::string::npos;
      const bool found = newline != std::string::npos && newline >= at_;
      const std::size_t line_begin = found ? newline + 1 : at_;
      if ((found || line_starting_) && line_begin < end && skip_space(line_begin) >= end) keep = line_begin;
    }
    if (keep > at_) push(TokenKind::data, source_.substr(at_, keep - at_));
    advance_to(end);
  }

  char sign_at(std::size_t at) const { return peek(at) == '-' || peek(at) == '+' ? peek(at) : '\0'; }

  void root() {
    std::size_t open = at_;
    while ((open = source_.find('{', open)) != std::string::npos && !(peek(open + 1) == '%' || peek(open + 1) == '{' || peek(open + 1) == '#')) ++open;
    if (open == std::string::npos) {
      push(TokenKind::data, source_.substr(at_));
      advance_to(source_.size());
      return;
    }
    const char type = source_[open + 1];
    const char sign = sign_at(open + 2);
    data(open, sign, type == '{');
    const std::size_t inside = open + 2 + (sign ? 1 : 0);
    if (type == '#') return comment(inside);
    if (type == '%' && raw(inside)) return;
    push(type == '{' ? TokenKind::variable_begin : TokenKind::block_begin, "");
    advance_to(inside);
    line_starting_ = false;
    expression(type == '{');
  }

  /// Length of a closing tag such as "-%}" at `at`, with the white space that it swallows; 0 if there is none.
  std::size_t closing(std::string_view tag, std::size_t at, bool trims_newline) const {
    if (peek(at) == '-' && looking_at(tag, at + 1)) return skip_space(at + 3) - at;
    if (trims_newline && peek(at) == '+' && looking_at(tag, at + 1)) return 3;
    if (!looking_at(tag, at)) return 0;
    return trims_newline && peek(at + 2) == '\n' ? 3 : 2;
  }

  void close(std::size_t length) {
    line_starting_ = source_[at_ + length - 1] == '\n';
    advance_to(at_ + length);
  }

  void comment(std::size_t inside) {
    for (std::size_t at = inside; at < source_.size(); ++at) {
      if (const std::size_t length = closing("#}", at, true)) {
        advance_to(at);
        return close(length);
      }
    }
    error("a comment is not closed");
  }

  bool raw(std::size_t inside) {
    const auto word = [&](std::size_t at, std::string_view name) -> std::size_t {
      at = skip_space(at);
      return looking_at(name, at) ? skip_space(at + name.size()) : std::string::npos;
    };
    const std::size_t tag_end = word(inside, "raw");
    if (tag_end == std::string::npos) return false;
    const std::size_t length = closing("%}", tag_end, false);
    if (!length) return false;
    advance_to(tag_end);
    close(length);
    for (std::size_t at = at_; (at = source_.find("{%", at)) != std::string::npos; ++at) {
      const char sign = sign_at(at + 2);
      const std::size_t end = word(at + 2 + (sign ? 1 : 0), "endraw");
      if (end == std::string::npos) continue;
      if (const std::size_t closed = closing("%}", end, true)) {
        data(at, sign, false);
        advance_to(end);
        close(closed);
        return true;
      }
    }
    error("a raw block is not closed");
  }

  void expression(bool is_variable) {
    std::string brackets;
    for (;;) {
      advance_to(skip_space(at_));
      if (at_ >= source_.size()) error("the template ends inside a tag");
      if (brackets.empty()) {
        if (const std::size_t length = closing(is_variable ? "}}" : "%}", at_, !is_variable)) {
          push(is_variable ? TokenKind::variable_end : TokenKind::block_end, "");
          return close(length);
        }
      }
      const char c = source_[at_];
      if (is_name_start(c)) {
        std::size_t end = at_;
        while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
        take(TokenKind::name, end);
      } else if (is_digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        string();
      } else {
        op(brackets);
      }
    }
  }

  void take(TokenKind kind, std::size_t end) {
    push(kind, source_.substr(at_, end - at_));
    advance_to(end);
  }

  void number() {
    const auto digits = [&](std::size_t at) {
      while (is_digit(peek(at)) || (peek(at) == '_' && is_digit(peek(at + 1)))) ++at;
      return at;
    };
    std::size_t end = digits(at_);
    bool floating = false;
    if (peek(end) == '.' && is_digit(peek(end + 1))) {
      end = digits(end + 1);
      floating = true;
    }
    if (peek(end) == 'e' || peek(end) == 'E') {
      std::size_t exponent = end + 1;
      if (peek(exponent) == '+' || peek(exponent) == '-') ++exponent;
      if (is_digit(peek(exponent))) {
        end = digits(exponent);
        floating = true;
      }
    }
    std::string value = source_.substr(at_, end - at_);
    std::erase(value, '_');
    push(floating ? TokenKind::floating : TokenKind::integer, std::move(value));
    advance_to(end);
  }

  void string() {
    const char quote = source_[at_];
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) error("a string is not closed");
    push(TokenKind::string, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance_to(end + 1);
  }

  /// Python's escapes ("unicode-escape" codec); an unknown one keeps its backslash.
  std::string unescape(std::string_view text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view kFrom = "abfnrtv\\'\"";
      constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
      if (const auto known = kFrom.find(c); known != std::string_view::npos) {
        out += kTo[known];
      } else if (c == '\n') {
        continue;  // a line continued in the source
      } else if (c >= '0' && c <= '7') {
        char32_t value = 0;
        std::size_t digits = 0;
        for (; digits < 3 && i + digits < text.size() && text[i + digits] >= '0' && text[i + digits] <= '7'; ++digits) {
          value = value * 8 + static_cast<char32_t>(text[i + digits] - '0');
        }
        append_utf8(out, value);
        i += digits - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(out, hex(text, i + 1, digits));
        i += digits;
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  char32_t hex(std::string_view text, std::size_t at, std::size_t digits) const {
    char32_t value = 0;
    for (std::size_t k = 0; k < digits; ++k) {
      const char c = at + k < text.size() ? text[at + k] : '\0';
      const auto digit = std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
      if (c == '\0' || digit == std::string_view::npos) error("a string has a damaged \\x or \\u escape");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value > 0x10FFFF || (value >= 0xD800 && value < 0xE000) ? kReplacement : value;
  }

  void op(std::string& brackets) {
    constexpr std::array<std::string_view, 6> kDouble = {"//", "**", "==", "!=", ">=", "<="};
    for (const auto& two : kDouble) {
      if (looking_at(two, at_)) return take(TokenKind::op, at_ + 2);
    }
    const char c = source_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      error(fmt::format("unexpected character '{}'", c));
    }
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) error(fmt::format("unexpected '{}'", c));
      brackets.pop_back();
    }
    take(TokenKind::op, at_ + 1);
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // only blanks were before at_ on this line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace heirloom::text::jinja
