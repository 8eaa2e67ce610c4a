#include "server/schema_check.h"

#include <xgrammar/grammar.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/printable.h"
#include "server/fields.h"
#include "server/tool_schema.h"
#include "server/xgrammar_log.h"

namespace heirloom::server {
namespace {

constexpr std::size_t kMaxSchemaBytes = 256 << 10;
constexpr std::size_t kMaxPatternBytes = 4096;
// Larger repetition counts make the compiled automaton, and the time to make it, grow without use.
constexpr std::int64_t kMaxCount = 100'000;

// Everything else (title, default, $comment, ...) restricts nothing.
constexpr std::array kEnforced{"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "properties", "required",
                               "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties",
                               "items", "prefixItems", "minItems", "maxItems", "unevaluatedItems", "unevaluatedProperties",
                               "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
                               "exclusiveMaximum", "multipleOf"};
// Keywords of JSON Schema that restrict and that the compiler does not know; others are no keywords and mean nothing.
constexpr std::array kRefused{"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains",
                              "minContains", "maxContains", "additionalItems", "$dynamicRef", "$recursiveRef", "extends", "disallow"};
constexpr std::array kFormats{"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
                              "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"};

// The compiler's own "date" takes any day up to 31. These are the days of the calendar, of the years 1000 to 9999.
constexpr const char* kDate =
    "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|"
    "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)";
constexpr const char* kTime = "T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

template <typename List>
bool among(const List& list, std::string_view name) {
  return std::any_of(list.begin(), list.end(), [&](const char* one) { return name == one; });
}

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  Json check(const Json& schema, const std::string& path) {
    if (schema.is_boolean()) return schema;
    if (!schema.is_object()) bad_field(path, "must be a schema (an object or a boolean), found {}", describe(schema));
    for (const auto& [key, value] : schema.items()) {
      if (among(kRefused, key)) bad_field(path + "." + key, "the keyword \"{}\" cannot be enforced here", key);
    }
    // One of these decides the value; the compiler reads the first it finds and skips the others.
    for (const char* decider : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      if (schema.contains(decider)) return check_decided(schema, decider, path);
    }
    return check_typed(schema, path);
  }

 private:
  Json check_decided(const Json& schema, const std::string& decider, const std::string& path) {
    Json result = schema;
    for (const auto& [key, value] : schema.items()) {
      if (key == decider || key == "type" || !among(kEnforced, key)) continue;
      bad_field(path + "." + key, "\"{}\" beside \"{}\" cannot be enforced here; merge the two", key, decider);
    }
    copy_definitions(result, path);
    const std::string where = path + "." + decider;
    const Json& value = schema.at(decider);
    if (decider == "$ref") {
      if (!value.is_string()) bad_field(where, "must be a string, found {}", describe(value));
      const auto& target = value.get_ref<const std::string&>();
      if (target != "#" && !target.starts_with("#/")) bad_field(where, "only references into this schema (#/...) are followed, found \"{}\"", printable(target, 60));
      if (target != "#" && !resolves(target)) bad_field(where, "\"{}\" points to nothing in this schema", printable(target, 60));
    }
    if (schema.contains("type")) {
      // `type` beside the decider is fine where it says the same again, else it would be lost.
      const JsonTypes said = schema_types({{"type", schema.at("type")}}, root_);
      if (decider == "enum" || decider == "const") {
        const Json values = decider == "const" ? Json::array({value}) : value;
        if (values.is_array()) {
          for (const Json& one : values) {
            if (!type_allows(said, one)) bad_field(path + ".type", "the value {} of \"{}\" is not of this type", describe(one), decider);
          }
        }
      } else if (!(schema_types({{decider, value}}, root_) == said)) {
        bad_field(path + ".type", "\"type\" beside \"{}\" cannot be enforced here; put it into every branch", decider);
      }
      result.erase("type");
    }
    if (decider == "enum") {
      if (!value.is_array() || value.empty()) bad_field(where, "must be a non-empty array");
    }
    if (decider == "anyOf" || decider == "oneOf" || decider == "allOf") {
      if (!value.is_array() || value.empty()) bad_field(where, "must be a non-empty array");
      if (decider == "allOf" && value.size() > 1) bad_field(where, "allOf of more than one schema cannot be enforced here; merge them");
      for (std::size_t i = 0; i < value.size(); ++i) result[decider][i] = check(value[i], fmt::format("{}[{}]", where, i));
    }
    return result;
  }

  Json check_typed(const Json& schema, const std::string& path) {
    Json result = schema;
    copy_definitions(result, path);
    if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
      if (!pattern->is_string()) bad_field(path + ".pattern", "must be a string, found {}", describe(*pattern));
      result["pattern"] = checked_regex(pattern->get<std::string>(), path + ".pattern");
      for (const char* length : {"minLength", "maxLength"}) {
        if (schema.contains(length)) bad_field(path + "." + length, "beside \"pattern\" cannot be enforced here; put it into the pattern");
      }
    }
    if (const auto format = schema.find("format"); format != schema.end()) {
      if (!format->is_string()) bad_field(path + ".format", "must be a string, found {}", describe(*format));
      const auto& name = format->get_ref<const std::string&>();
      const JsonTypes types = schema_types(schema, root_);
      if (types.string || types.empty()) {
        if (!among(kFormats, name)) bad_field(path + ".format", "the format \"{}\" cannot be enforced here", printable(name, 40));
        if (schema.contains("pattern")) bad_field(path + ".format", "beside \"pattern\" cannot be enforced here");
        for (const char* length : {"minLength", "maxLength"}) {
          if (schema.contains(length)) bad_field(path + "." + length, "beside \"format\" cannot be enforced here");
        }
        if (types.string && (name == "date" || name == "date-time")) {
          result.erase("format");
          result["pattern"] = fmt::format("^{}{}$", kDate, name == "date" ? "" : kTime);
        }
      }
    }
    for (const char* name : {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}) {
      if (const auto count = schema.find(name); count != schema.end()) {
        const bool good = count->is_number() && count->get<double>() >= 0 && std::floor(count->get<double>()) == count->get<double>();
        if (!good) bad_field(path + "." + name, "must be a whole number of at least 0, found {}", describe(*count));
        if (count->get<double>() > static_cast<double>(kMaxCount)) bad_field(path + "." + name, "counts above {} are not enforced here", kMaxCount);
        result[name] = static_cast<std::int64_t>(count->get<double>());
      }
    }
    for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      if (const auto bound = schema.find(name); bound != schema.end() && !bound->is_number()) {
        bad_field(path + "." + name, "must be a number, found {}", describe(*bound));
      }
    }
    if (const auto unique = schema.find("uniqueItems"); unique != schema.end()) {
      if (unique->is_boolean() && !unique->get<bool>()) {
        result.erase("uniqueItems");
      } else {
        bad_field(path + ".uniqueItems", "cannot be enforced here");
      }
    }
    for (const char* name : {"properties", "patternProperties"}) {
      const auto map = schema.find(name);
      if (map == schema.end()) continue;
      if (!map->is_object()) bad_field(path + "." + name, "must be an object, found {}", describe(*map));
      Json checked = Json::object();
      for (const auto& [key, value] : map->items()) {
        const std::string where = fmt::format("{}.{}.{}", path, name, printable(key, 60));
        const std::string new_key = name[1] == 'a' ? checked_regex(key, where) : key;
        checked[new_key] = check(value, where);
      }
      result[name] = std::move(checked);
    }
    for (const char* name : {"additionalProperties", "propertyNames", "items", "unevaluatedItems", "unevaluatedProperties"}) {
      const auto child = schema.find(name);
      if (child == schema.end()) continue;
      if (child->is_array()) bad_field(path + "." + name, "an array here is an older form; use prefixItems");
      result[name] = check(*child, path + "." + name);
    }
    if (const auto tuple = schema.find("prefixItems"); tuple != schema.end()) {
      if (!tuple->is_array()) bad_field(path + ".prefixItems", "must be an array, found {}", describe(*tuple));
      for (std::size_t i = 0; i < tuple->size(); ++i) result["prefixItems"][i] = check((*tuple)[i], fmt::format("{}.prefixItems[{}]", path, i));
    }
    infer_type(result, path);
    return result;
  }

  /// Keywords of one type without "type": the compiler wants the type said.
  static void infer_type(Json& schema, const std::string& path) {
    if (schema.contains("type")) return;
    const auto any = [&](std::initializer_list<const char*> names) {
      return std::any_of(names.begin(), names.end(), [&](const char* name) { return schema.contains(name); });
    };
    for (const char* name : {"pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
                             "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minProperties", "maxProperties",
                             "patternProperties", "propertyNames"}) {
      if (schema.contains(name)) bad_field(path + "." + name, "cannot be enforced without a \"type\" beside it");
    }
    if (any({"properties", "additionalProperties", "required", "unevaluatedProperties"})) schema["type"] = "object";
    if (any({"items", "prefixItems", "unevaluatedItems"})) schema["type"] = "array";
  }

  void copy_definitions(Json& result, const std::string& path) {
    for (const char* name : {"$defs", "definitions"}) {
      const auto map = result.find(name);
      if (map == result.end()) continue;
      if (!map->is_object()) bad_field(path + "." + name, "must be an object, found {}", describe(*map));
      Json checked = Json::object();
      for (const auto& [key, value] : map->items()) checked[key] = check(value, fmt::format("{}.{}.{}", path, name, printable(key, 60)));
      *map = std::move(checked);
    }
  }

  bool resolves(const std::string& target) const {
    try {
      return root_.contains(Json::json_pointer(target.substr(1)));
    } catch (const nlohmann::json::exception&) {
      return false;
    }
  }

  static bool type_allows(const JsonTypes& types, const Json& value) {
    if (value.is_string()) return types.string;
    if (value.is_boolean()) return types.boolean;
    if (value.is_number_integer()) return types.integer || types.number;
    if (value.is_number()) return types.number;
    if (value.is_object()) return types.object;
    if (value.is_array()) return types.array;
    return types.null;
  }

  const Json& root_;
};

}  // namespace

std::string checked_regex(const std::string& pattern, const std::string& path) {
  if (pattern.size() > kMaxPatternBytes) bad_field(path, "has {} bytes, at most {} are taken", pattern.size(), kMaxPatternBytes);
  std::string regex;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      // An escaped character that has no meaning of its own stands for itself; the compiler knows only the usual ones.
      constexpr std::string_view kPlain = "!@#%&=~`,;:'\"<> _";
      const char next = pattern[++i];
      if (kPlain.find(next) == std::string_view::npos) regex += c;
      regex += next;
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    if (c == '{' && !in_class) {
      std::int64_t count = 0;
      for (std::size_t j = i + 1; j < pattern.size() && pattern[j] != '}'; ++j) {
        count = pattern[j] >= '0' && pattern[j] <= '9' ? std::min<std::int64_t>(count * 10 + (pattern[j] - '0'), kMaxCount) : 0;
        if (count > 1000) bad_field(path, "repetition counts above 1000 are not enforced here");
      }
    }
    regex += c;
  }
  const XgrammarWarnings warnings;
  try {
    const auto grammar = xgrammar::Grammar::FromRegex(regex);
  } catch (const std::exception& error) {
    bad_field(path, "the pattern \"{}\" cannot be enforced: {}", printable(pattern, 80), printable(error.what(), 200));
  }
  if (!warnings.messages().empty()) {
    bad_field(path, "the pattern \"{}\" cannot be enforced: {}", printable(pattern, 80), printable(warnings.messages()[0], 200));
  }
  return regex;
}

Json checked_schema(const Json& schema, const std::string& path) {
  const std::size_t size = schema.dump(-1, ' ', false, Json::error_handler_t::replace).size();
  if (size > kMaxSchemaBytes) bad_field(path, "has {} bytes, at most {} are taken", size, kMaxSchemaBytes);
  return Checker(schema).check(schema, path);
}

}  // namespace heirloom::server
