// JSON in and out of the template language: request data to values, and Python's json.dumps for the tojson filter.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/jinja/value.h"

namespace heirloom::text::jinja {

class Budget;

/// The value of request data; every string in it, keys included, is tainted. Adds the size of what it made to `bytes`.
/// Throws Error{usage} for data nested deeper than kMaxValueDepth.
Value from_json(const nlohmann::ordered_json& json, std::size_t& bytes);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // one level; absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// json.dumps(value) with Python's spelling of numbers and escapes. Strings keep their taint.
Text to_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace heirloom::text::jinja
