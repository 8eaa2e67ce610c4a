// What a request's tools say about their arguments, as far as reading a model's tool call needs it: which JSON types each
// parameter may have. XML-style calls carry bare text; the schema decides whether `5` is a number or a string.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "heirloom/engine.h"

namespace heirloom::server {

/// A set of JSON types. Empty means that the schema does not say.
struct JsonTypes {
  bool string = false, number = false, integer = false, boolean = false, object = false, array = false, null = false;

  bool empty() const { return !(string || number || integer || boolean || object || array || null); }
  bool operator==(const JsonTypes&) const = default;
  bool only_string() const { return string && !(number || integer || boolean || object || array || null); }
};

class ToolSchemas {
 public:
  ToolSchemas() = default;
  /// `tools`: OpenAI-style array, already validated: [{"type": "function", "function": {"name", "parameters"}}].
  explicit ToolSchemas(const Json& tools);

  bool empty() const { return tools_.empty(); }
  bool has(std::string_view name) const { return tools_.find(name) != tools_.end(); }
  /// Types of a parameter; empty for an unknown tool, an unknown parameter or a schema without a type.
  JsonTypes types(std::string_view tool, std::string_view parameter) const;

 private:
  std::map<std::string, std::map<std::string, JsonTypes, std::less<>>, std::less<>> tools_;
};

/// Types that `schema` allows; `root` resolves "$ref": "#/...".
JsonTypes schema_types(const Json& schema, const Json& root);

/// JSON text of a bare argument: read as one of `types` where that works, else a JSON string (nothing is ever lost).
/// Numbers keep their spelling.
std::string argument_json(std::string_view text, const JsonTypes& types);

/// `text` as the inside of a JSON string (no quotes), UTF-8 kept.
std::string json_escape(std::string_view text);

}  // namespace heirloom::server
