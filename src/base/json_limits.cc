#include "base/json_limits.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/printable.h"

namespace heirloom {
namespace {

// Sum over objects of keys squared that an ordered document may cost: about 0.2 s of string comparisons.
constexpr std::uint64_t kOrderedKeyBudget = 200'000'000;

struct Scan {
  std::uint64_t key_cost = 0;
};

// Counts brackets and separators outside strings. On the part of the text that is valid JSON this is exactly the parser's
// view, and what follows the first error is never built.
Scan scan_limits(std::string_view text, std::string_view where, const JsonLimits& limits) {
  Scan result;
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
      case '"': in_string = true; break;
      case '[':
      case '{':
        if (separators.size() >= limits.depth) {
          fail(limits.kind, "{}: JSON at byte {} is nested deeper than {} levels", where, i, limits.depth);
        }
        separators.push_back(0);
        ++values;
        break;
      case ']':
      case '}':
        if (!separators.empty()) {
          if (c == '}') result.key_cost += (separators.back() + 1) * (separators.back() + 1);
          separators.pop_back();
        }
        break;
      case ',':
        if (!separators.empty()) ++separators.back();
        ++values;
        break;
      case '\0': fail(limits.kind, "{}: invalid JSON at byte {}: a zero byte", where, i);  // the parser would stop here
      default: break;
    }
    if (values > limits.values) {
      fail(limits.kind, "{}: JSON holds more than {} values", where, limits.values);
    }
  }
  // An object left open is a syntax error, found by the parser only after it has stored the keys.
  for (const std::uint64_t count : separators) result.key_cost += (count + 1) * (count + 1);
  return result;
}

template <typename Json>
Json parse_checked(std::string_view text, std::string_view where, const JsonLimits& limits) {
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    fail(limits.kind, "{}: invalid JSON at byte {}: {}", where, error.byte, json_error_reason(error));
  } catch (const nlohmann::json::exception& error) {
    fail(limits.kind, "{}: invalid JSON: {}", where, json_error_reason(error));
  }
}

}  // namespace

std::string json_error_reason(const nlohmann::json::exception& error) {
  std::string_view reason = error.what();
  // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...; last read: '...'"
  if (const auto tag = reason.find("] "); tag != std::string_view::npos) reason.remove_prefix(tag + 2);
  if (reason.starts_with("parse error")) {
    if (const auto colon = reason.find(": "); colon != std::string_view::npos) reason.remove_prefix(colon + 2);
  }
  reason = reason.substr(0, reason.find("; last read"));
  return printable(reason, 160);
}

nlohmann::json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  scan_limits(text, where, limits);
  return parse_checked<nlohmann::json>(text, where, limits);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (scan_limits(text, where, limits).key_cost > kOrderedKeyBudget) {
    fail(limits.kind, "{}: JSON has objects of too many keys", where);
  }
  return parse_checked<nlohmann::ordered_json>(text, where, limits);
}

}  // namespace heirloom
