// JSON text of unknown origin into a document, with limits checked in one linear scan before anything is built: depth (so
// that nothing recurses on nested brackets), number of values (memory) and, for ordered documents, the cost of their
// linear key search. A key given twice keeps its last value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "heirloom/error.h"

namespace heirloom {

struct JsonLimits {
  std::uint32_t depth = 64;             // nested arrays and objects
  std::uint64_t values = 16'000'000;    // a tokenizer.json of 250,000 tokens and merges has about 1.3 million
  ErrorKind kind = ErrorKind::bad_file;  // of the Error that is thrown
};

/// Parses `text`; object keys come out sorted. Throws Error{limits.kind} that starts with `where` (a file name or the like)
/// and names the byte offset and what is wrong: broken syntax, invalid UTF-8, a limit passed.
nlohmann::json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});

/// The same with keys in file order. Its key lookup is linear, so objects of very many keys are refused (a vocabulary
/// belongs in parse_json).
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});

/// Short reason inside a nlohmann exception: without the library's tags and the quoted input, one line.
std::string json_error_reason(const nlohmann::json::exception& error);

}  // namespace heirloom
