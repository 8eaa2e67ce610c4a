// JSON texts from files and requests, parsed within limits that one linear scan checks before anything is
// built: nesting (so that nothing recurses on brackets), number of values (memory) and, for documents that
// keep their key order, the cost of the linear key search. A key given twice keeps its last value.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "heirloom/error.h"

namespace heirloom {

using OrderedJson = nlohmann::ordered_json;

/// Parses `text`, keys in file order; `source` is named in errors. Throws Error{kind} with the byte offset of
/// a syntax error or of invalid UTF-8, when objects and arrays nest deeper than `max_depth`, or when there
/// are too many values or keys.
OrderedJson parse_json(std::string_view text, std::string_view source, ErrorKind kind = ErrorKind::bad_file,
                       int max_depth = 100);

/// The same with keys sorted: for documents whose objects have very many keys (vocabularies, weight maps),
/// which parse_json refuses because it would search them linearly.
nlohmann::json parse_sorted_json(std::string_view text, std::string_view source,
                                 ErrorKind kind = ErrorKind::bad_file, int max_depth = 100);

/// Short reason inside a nlohmann exception: without the library's tags and the quoted input, one line.
std::string json_error_reason(const nlohmann::json::exception& error);

}  // namespace heirloom
