// JSON texts from files and requests, parsed with a bound on their nesting.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "heirloom/error.h"

namespace heirloom {

using OrderedJson = nlohmann::ordered_json;

/// Parses `text`; `source` is named in errors. Throws Error{kind} with the byte offset of a syntax error, or when objects
/// and arrays nest deeper than `max_depth`.
OrderedJson parse_json(std::string_view text, std::string_view source, ErrorKind kind = ErrorKind::bad_file,
                       int max_depth = 100);

}  // namespace heirloom
