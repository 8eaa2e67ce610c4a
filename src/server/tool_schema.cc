#include "server/tool_schema.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/json.h"

namespace heirloom::server {
namespace {

constexpr int kSchemaDepth = 16;       // of $ref and anyOf chains that are followed
constexpr int kJsonDepth = 128;

void add_type_name(const std::string& name, JsonTypes& types) {
  if (name == "string") types.string = true;
  if (name == "number") types.number = true;
  if (name == "integer") types.integer = true;
  if (name == "boolean") types.boolean = true;
  if (name == "object") types.object = true;
  if (name == "array") types.array = true;
  if (name == "null") types.null = true;
}

void add_value_type(const Json& value, JsonTypes& types) {
  switch (value.type()) {
    case Json::value_t::string: types.string = true; break;
    case Json::value_t::boolean: types.boolean = true; break;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: types.integer = true; break;
    case Json::value_t::number_float: types.number = true; break;
    case Json::value_t::object: types.object = true; break;
    case Json::value_t::array: types.array = true; break;
    default: types.null = true; break;
  }
}

void collect(const Json& schema, const Json& root, int depth, JsonTypes& types) {
  if (!schema.is_object() || depth > kSchemaDepth) return;
  if (const auto ref = schema.find("$ref"); ref != schema.end() && ref->is_string()) {
    const auto& target = ref->get_ref<const std::string&>();
    if (target.starts_with("#/")) {
      try {
        const Json::json_pointer pointer(target.substr(1));
        if (root.contains(pointer)) collect(root.at(pointer), root, depth + 1, types);
      } catch (const nlohmann::json::exception&) {
        // not a pointer: the type stays unknown, the argument a string
      }
    }
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) add_type_name(type->get<std::string>(), types);
    if (type->is_array()) {
      for (const Json& one : *type) {
        if (one.is_string()) add_type_name(one.get<std::string>(), types);
      }
    }
    return;
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    if (const auto options = schema.find(key); options != schema.end() && options->is_array()) {
      for (const Json& option : *options) collect(option, root, depth + 1, types);
    }
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const Json& value : *values) add_value_type(value, types);
  }
  if (const auto value = schema.find("const"); value != schema.end()) add_value_type(*value, types);
}

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}

/// Numbers as JSON spells them; the text itself is then the value.
bool is_json_number(std::string_view text, bool integers_only) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t start = i;
    while (i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0) ++i;
    return i - start;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const std::size_t first = i;
  const std::size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[first] == '0')) return false;
  if (i == text.size()) return true;
  if (integers_only) return false;
  if (text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

}  // namespace

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    auto& parameters = tools_[function.at("name").get<std::string>()];
    const auto schema = function.find("parameters");
    if (schema == function.end() || !schema->is_object()) continue;
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) continue;
    for (const auto& [name, property] : properties->items()) parameters[name] = schema_types(property, *schema);
  }
}

JsonTypes ToolSchemas::types(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return {};
  const auto type = found->second.find(parameter);
  return type == found->second.end() ? JsonTypes{} : type->second;
}

JsonTypes schema_types(const Json& schema, const Json& root) {
  JsonTypes types;
  collect(schema, root, 0, types);
  return types;
}

std::string json_escape(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 8);
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string argument_json(std::string_view text, const JsonTypes& types) {
  const std::string_view bare = trim(text);
  if (types.null && (bare == "null" || bare == "None")) return "null";
  if (types.boolean && equals_ignoring_case(bare, "true")) return "true";
  if (types.boolean && equals_ignoring_case(bare, "false")) return "false";
  if ((types.integer || types.number) && is_json_number(bare, !types.number)) return std::string(bare);
  if ((types.object && bare.starts_with('{')) || (types.array && bare.starts_with('['))) {
    try {
      return parse_json(bare, "argument", ErrorKind::usage, kJsonDepth).dump();
    } catch (const Error&) {
      // not JSON after all: kept as text
    }
  }
  return '"' + json_escape(text) + '"';
}

}  // namespace heirloom::server
