#include "text/jinja/json_value.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/budget.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

using nlohmann::ordered_json;

Value text_value(const std::string& text, std::size_t& bytes) {
  bytes += text.size() + 32;
  return Value(Text(is_valid_utf8(text) ? text : replace_invalid_utf8(text), true));
}

Value convert(const ordered_json& json, std::size_t& bytes, int level) {
  if (level > kMaxValueDepth / 2) template_fail("the request's data is nested more than {} levels deep", kMaxValueDepth / 2);
  bytes += 32;
  switch (json.type()) {
    case ordered_json::value_t::null: return None{};
    case ordered_json::value_t::boolean: return Value(json.get<bool>());
    case ordered_json::value_t::number_integer: return Value(json.get<std::int64_t>());
    case ordered_json::value_t::number_unsigned: {
      const auto value = json.get<std::uint64_t>();
      return value > INT64_MAX ? Value(static_cast<double>(value)) : Value(static_cast<std::int64_t>(value));
    }
    case ordered_json::value_t::number_float: return Value(json.get<double>());
    case ordered_json::value_t::string: return text_value(json.get_ref<const std::string&>(), bytes);
    case ordered_json::value_t::array: {
      auto list = std::make_shared<List>();
      for (const auto& item : json) {
        list->items.push_back(convert(item, bytes, level + 1));
        const Value& made = list->items.back();
        list->depth = std::max(list->depth, 1 + (made.is_list() ? made.list().depth : made.is_dict() ? made.dict().depth : 0));
      }
      return Value(std::move(list));
    }
    case ordered_json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items()) {
        Value made = convert(item, bytes, level + 1);
        dict->depth = std::max(dict->depth, 1 + (made.is_list() ? made.list().depth : made.is_dict() ? made.dict().depth : 0));
        dict->set(text_value(key, bytes), std::move(made));
      }
      return Value(std::move(dict));
    }
    default: template_fail("the request's data holds a binary value");
  }
}

class Writer {
 public:
  Writer(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}
  Text out;

  void write(const Value& value, int level) {
    budget_.step();
    if (out.size() > Budget::kMaxTextBytes) budget_.make_text(out.size());
    if (value.is_text()) return write_text(value.text());
    if (value.is_none()) return out.append("null", false);
    if (value.is_bool()) return out.append(value.boolean() ? "true" : "false", false);
    if (value.is_int()) return out.append(std::to_string(*value.as_int()), false);
    if (value.is_float()) return out.append(number(value.as_double()), false);
    if (value.is_dict()) return write_dict(value.dict(), level);
    if (value.is_sequence()) return write_list(value.list(), level);
    template_fail("Object of type {} is not JSON serializable", value.type_name());
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void line(int level) {
    if (!style_.indent) return;
    budget_.make_text(style_.indent->size() * static_cast<std::size_t>(level));
    out.append("\n", false);
    for (int i = 0; i < level; ++i) out.append(*style_.indent, false);
  }

  void write_list(const List& list, int level) {
    if (list.items.empty()) return out.append("[]", false);
    out.append("[", false);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i) out.append(style_.item_separator, false);
      line(level + 1);
      write(list.items[i], level + 1);
    }
    line(level);
    out.append("]", false);
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.entries.empty()) return out.append("{}", false);
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return compare(budget_, a->first, b->first) == -1; });
    }
    out.append("{", false);
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out.append(style_.item_separator, false);
      first = false;
      line(level + 1);
      write_key(entry->first);
      out.append(style_.key_separator, false);
      write(entry->second, level + 1);
    }
    line(level);
    out.append("}", false);
  }

  void write_key(const Value& key) {
    if (key.is_text()) return write_text(key.text());
    out.append("\"", false);
    if (key.is_none()) {
      out.append("null", false);
    } else if (key.is_bool()) {
      out.append(key.boolean() ? "true" : "false", false);
    } else if (key.is_number()) {
      out.append(key.is_float() ? number(key.as_double()) : std::to_string(*key.as_int()), false);
    } else {
      template_fail("keys must be str, int, float, bool or None, not {}", key.type_name());
    }
    out.append("\"", false);
  }

  void write_text(const Text& text) {
    budget_.make_text(text.size() * (style_.ensure_ascii ? 3 : 1) + 2);
    const std::string& s = text.str();
    out.append("\"", false);
    std::size_t plain = 0;  // start of the stretch that needs no escape
    for (std::size_t i = 0, size; i < s.size(); i += size) {
      const auto c = static_cast<unsigned char>(s[i]);
      size = 1;
      std::string escaped;
      if (c == '"' || c == '\\') {
        escaped = {'\\', s[i]};
      } else if (c < 0x20) {
        const auto known = std::string_view("\b\f\n\r\t").find(s[i]);
        escaped = known == std::string_view::npos ? fmt::format("\\u{:04x}", c) : std::string{'\\', "bfnrt"[known]};
      } else if (c >= 0x80 && style_.ensure_ascii) {
        const char32_t point = decode_valid_utf8(s.data() + i, size);
        escaped = point < 0x10000 ? fmt::format("\\u{:04x}", static_cast<unsigned>(point))
                                  : fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (static_cast<unsigned>(point) - 0x10000) / 0x400,
                                                0xDC00 + (static_cast<unsigned>(point) - 0x10000) % 0x400);
      } else {
        continue;
      }
      out.append(text, plain, i);
      out.append(escaped, text.any_tainted(i, i + size));
      plain = i + size;
    }
    out.append(text, plain, s.size());
    out.append("\"", false);
  }

  Budget& budget_;
  const JsonStyle& style_;
};

}  // namespace

Value from_json(const ordered_json& json, std::size_t& bytes) { return convert(json, bytes, 0); }

Text to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  Writer writer(budget, style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace heirloom::text::jinja
