#include "base/json.h"

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/printable.h"

namespace heirloom {
namespace {

// Sum over objects of keys squared that an ordered document may cost: about 0.2 s of string comparisons.
constexpr std::uint64_t kOrderedKeyBudget = 200'000'000;

// A tokenizer.json of 250,000 tokens and merges has about 1.3 million values.
constexpr std::uint64_t kMaxValues = 16'000'000;

// Checks nesting and number of values; returns the key cost of the document. Counts brackets and separators
// outside strings. On the part of the text that is valid JSON this is exactly the parser's view, and what
// follows the first error is never built.
std::uint64_t scan_limits(std::string_view text, std::string_view source, ErrorKind kind, int max_depth) {
  std::uint64_t key_cost = 0;
  std::vector<std::uint64_t> separators;  // commas seen at each open level
  std::uint64_t values = 1;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '[':
      case '{':
        if (separators.size() >= static_cast<std::size_t>(max_depth)) {
          fail(kind, "{}: JSON at byte {} is nested deeper than {} levels", source, i, max_depth);
        }
        separators.push_back(0);
        ++values;
        break;
      case ']':
      case '}':
        if (!separators.empty()) {
          if (c == '}') key_cost += (separators.back() + 1) * (separators.back() + 1);
          separators.pop_back();
        }
        break;
      case ',':
        if (!separators.empty()) ++separators.back();
        ++values;
        break;
      case '\0':
        // The parser takes it for the end of the text and would not look at what follows.
        fail(kind, "{}: invalid JSON at byte {}: a zero byte", source, i);
      default:
        break;
    }
    if (values > kMaxValues) {
      fail(kind, "{}: JSON holds more than {} values", source, kMaxValues);
    }
  }
  // An object left open is a syntax error, found by the parser only after it has stored the keys.
  for (const std::uint64_t count : separators) key_cost += (count + 1) * (count + 1);
  return key_cost;
}

template <typename Json>
Json parse_checked(std::string_view text, std::string_view source, ErrorKind kind) {
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    fail(kind, "{}: invalid JSON at byte {}: {}", source, error.byte, json_error_reason(error));
  } catch (const nlohmann::json::exception& error) {
    fail(kind, "{}: invalid JSON: {}", source, json_error_reason(error));
  }
}

}  // namespace

std::string json_error_reason(const nlohmann::json::exception& error) {
  std::string_view reason = error.what();
  // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...; last read: '...'"
  if (const auto tag = reason.find("] "); tag != std::string_view::npos) reason.remove_prefix(tag + 2);
  if (reason.starts_with("parse error")) {
    if (const auto colon = reason.find(": "); colon != std::string_view::npos)
      reason.remove_prefix(colon + 2);
  }
  reason = reason.substr(0, reason.find("; last read"));
  return printable(reason, 160);
}

nlohmann::json parse_sorted_json(std::string_view text, std::string_view source, ErrorKind kind,
                                 int max_depth) {
  scan_limits(text, source, kind, max_depth);
  return parse_checked<nlohmann::json>(text, source, kind);
}

OrderedJson parse_json(std::string_view text, std::string_view source, ErrorKind kind, int max_depth) {
  if (scan_limits(text, source, kind, max_depth) > kOrderedKeyBudget) {
    fail(kind, "{}: JSON has objects of too many keys", source);
  }
  return parse_checked<OrderedJson>(text, source, kind);
}

}  // namespace heirloom
