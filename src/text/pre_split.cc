#include "text/pre_split.h"

#include "text/unicode_class.h"
#include "text/utf8.h"

namespace heirloom::text {
namespace {

// transformers: models/qwen2/tokenization_qwen2.py and models/qwen3_5/tokenization_qwen3_5.py, PRETOKENIZE_REGEX.
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Scanner {
  const CharClasses& classes = CharClasses::get();
  std::string_view text;
  bool marks_are_letters;

  /// Class at position i (< size), folded to the pattern's four: letter, number, space, other. `size` = bytes.
  CharClass at(std::size_t i, std::size_t& size) const {
    const CharClass c = classes[decode_valid_utf8(text.data() + i, size)];
    if (c != CharClass::mark) return c;
    return marks_are_letters ? CharClass::letter : CharClass::other;
  }
  std::size_t run(CharClass wanted, std::size_t i) const {
    std::size_t size;
    while (i < text.size() && at(i, size) == wanted) i += size;
    return i;
  }
  bool newline(std::size_t i) const { return text[i] == '\r' || text[i] == '\n'; }

  /// Length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at i, which holds an apostrophe; 0 if none. Unicode case folding adds one
  /// character to the ASCII ones: U+017F (long s) equals s.
  std::size_t contraction(std::size_t i) const {
    const auto lower = [&](std::size_t k) { return k < text.size() ? static_cast<char>(text[k] | 0x20) : '\0'; };
    const auto letter = [&](std::size_t k, char wanted) {
      return lower(k) == wanted && static_cast<unsigned char>(text[k]) < 0x80 && text[k] >= 'A';
    };
    for (const char c : {'s', 't', 'm', 'd'}) {
      if (letter(i + 1, c)) return 2;
    }
    if ((letter(i + 1, 'r') || letter(i + 1, 'v')) && letter(i + 2, 'e')) return 3;
    if (letter(i + 1, 'l') && letter(i + 2, 'l')) return 3;
    if (text.substr(i + 1, 2) == "\xC5\xBF") return 3;
    return 0;
  }

  std::size_t next(std::size_t begin) const {
    if (text[begin] == '\'') {
      if (const std::size_t length = contraction(begin)) return begin + length;
    }
    std::size_t size;
    const CharClass first = at(begin, size);
    const std::size_t second = begin + size;
    // [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+ : a letter run, with one character of another kind before it
    if (first == CharClass::letter) return run(CharClass::letter, second);
    if (first == CharClass::number) return second;  // \p{N}
    CharClass following = CharClass::number;
    std::size_t following_size = 0;
    if (second < text.size()) following = at(second, following_size);
    if (following == CharClass::letter && !newline(begin)) return run(CharClass::letter, second + following_size);
    // ` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*`
    if (first == CharClass::other || (text[begin] == ' ' && following == CharClass::other)) {
      std::size_t end = run(CharClass::other, second);
      while (end < text.size() && newline(end)) ++end;
      return end;
    }
    // Whitespace. \s*[\r\n]+ : up to the last line break of the run.
    std::size_t end = begin;
    std::size_t last = begin;        // start of the run's last character
    std::size_t after_newline = 0;   // end of the run's last line break
    while (end < text.size() && at(end, size) == CharClass::space) {
      last = end;
      end += size;
      if (newline(last)) after_newline = end;
    }
    if (after_newline) return after_newline;
    // \s+(?!\S) : all of it at the end of the text, else all but the last character; \s+ : a single one.
    return end == text.size() || last == begin ? end : last;
  }
};

}  // namespace

std::optional<SplitPattern> split_pattern_of_regex(std::string_view regex) {
  if (regex == kQwen2Regex) return SplitPattern::qwen2;
  if (regex == kQwen35Regex) return SplitPattern::qwen35;
  return std::nullopt;
}

std::string_view split_regex(SplitPattern pattern) { return pattern == SplitPattern::qwen2 ? kQwen2Regex : kQwen35Regex; }

std::optional<SplitPattern> split_pattern_of_gguf(std::string_view name) {
  if (name == "qwen2") return SplitPattern::qwen2;
  if (name == "qwen35") return SplitPattern::qwen35;
  return std::nullopt;
}

std::size_t next_split(SplitPattern pattern, std::string_view text, std::size_t begin) {
  return Scanner{.text = text, .marks_are_letters = pattern == SplitPattern::qwen35}.next(begin);
}

}  // namespace heirloom::text
