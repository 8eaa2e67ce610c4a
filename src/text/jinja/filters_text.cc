// Filters on strings and numbers, and tojson.
#include <algorithm>
#include <cmath>
#include <charconv>

#include "text/jinja/filter_tables.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json_value.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

using In = Interpreter;
using A = Arguments;

Text charged(In& in, const Value& value, std::size_t factor = 1) {
  Text text = in.text(value);
  in.budget.make_text(text.size() * factor);
  return text;
}

Value upper(In& in, const Value& v, A&) { return Value(change_case(charged(in, v, 4), Case::upper)); }
Value lower(In& in, const Value& v, A&) { return Value(change_case(charged(in, v, 4), Case::lower)); }
Value capitalize(In& in, const Value& v, A&) { return Value(change_case(charged(in, v, 4), Case::capitalize)); }

/// Words begin after blanks and any of -({[<; unlike str.title(), an apostrophe does not start one.
Value title(In& in, const Value& v, A&) {
  const Text text = charged(in, v, 4);
  const std::string& s = text.str();
  Text out;
  for (std::size_t i = 0; i < s.size();) {
    std::size_t first;
    decode_valid_utf8(s.data() + i, first);
    std::size_t end = i;
    bool separator = false;
    for (std::size_t size; end < s.size() && !separator; end += size) {
      const char32_t c = decode_valid_utf8(s.data() + end, size);
      separator = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_python_space(c);
    }
    out.append(change_case(text.slice(i, i + first), Case::upper));
    out.append(change_case(text.slice(i + first, end), Case::lower));
    i = end;
  }
  return Value(std::move(out));
}

Value trim(In& in, const Value& v, A& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const bool given = bound[0] && !bound[0]->is_none();
  if (given && !bound[0]->is_text()) template_fail("trim() needs a string, not '{}'", bound[0]->type_name());
  return Value(strip(charged(in, v), true, true, given ? &bound[0]->str() : nullptr));
}

Value replace_filter(In& in, const Value& v, A& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"});
  Arguments method;
  method.positional = {Value(in.text(bound.required(0))), Value(in.text(bound.required(1)))};
  if (bound[2] && !bound[2]->is_none()) method.positional.push_back(*bound[2]);
  return *call_method(in, Value(in.text(v)), "replace", method);
}

Value string_filter(In& in, const Value& v, A&) { return v.is_text() ? v : Value(in.text(v)); }

Value safe(In& in, const Value& v, A&) {
  Text text = charged(in, v);
  text.markup = true;
  return Value(std::move(text));
}

Value escape(In& in, const Value& v, A&) {
  if (v.is_text() && v.text().markup) return v;
  const Text text = charged(in, v, 5);
  Text out;
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string_view entity;
    switch (text.str()[i]) {
      case '&': entity = "&amp;"; break;
      case '<': entity = "&lt;"; break;
      case '>': entity = "&gt;"; break;
      case '\'': entity = "&#39;"; break;
      case '"': entity = "&#34;"; break;
      default: continue;
    }
    out.append(text, plain, i);
    out.append(entity, text.any_tainted(i, i + 1));
    plain = i + 1;
  }
  out.append(text, plain, text.size());
  out.markup = true;
  return Value(std::move(out));
}

Value force_escape(In& in, const Value& v, A& arguments) {
  Text plain = in.text(v);
  plain.markup = false;
  return escape(in, Value(std::move(plain)), arguments);
}

Value indent(In& in, const Value& v, A& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_text()) template_fail("indent() needs a string, not '{}'", v.type_name());
  Text by(std::string(4, ' '));
  if (bound[0] && bound[0]->is_text()) {
    by = bound[0]->text();
  } else if (bound[0]) {
    const auto width = static_cast<std::size_t>(std::max<std::int64_t>(0, bound.integer(0, 4)));
    in.budget.make_text(width);
    by = Text(std::string(width, ' '));
  }
  const bool first = bound.truthy(1, false);
  const bool blank = bound.truthy(2, false);
  Text text = charged(in, v);
  text.append("\n", false);  // the last line keeps its own end
  const std::vector<Text> lines = split_lines(text, false);
  std::size_t total;
  if (__builtin_mul_overflow(lines.size(), by.size() + 1, &total)) total = SIZE_MAX / 2;
  in.budget.make_text(total + text.size());
  in.budget.make_items(lines.size() * 2);
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i) out.append("\n", false);
    const bool wanted = i == 0 ? first : (blank || !lines[i].empty());
    if (wanted) out.append(by);
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

Value format(In& in, const Value& v, A& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    template_fail("can't handle positional and keyword arguments at the same time");
  }
  if (arguments.named.empty()) {
    return Value(format_percent(in, in.text(v), in.make_list(std::move(arguments.positional), ListKind::tuple)));
  }
  std::vector<std::pair<Value, Value>> entries;
  for (auto& [name, value] : arguments.named) entries.emplace_back(Value(Text(name)), std::move(value));
  return Value(format_percent(in, in.text(v), in.make_dict(std::move(entries))));
}

Value center(In& in, const Value& v, A& arguments) {
  const Bound bound("center", arguments, {"width"});
  Arguments method;
  method.positional = {Value(bound.integer(0, 80))};
  return *call_method(in, Value(in.text(v)), "center", method);
}

Value word_count(In& in, const Value& v, A&) {
  const Text text = charged(in, v);
  std::int64_t count = 0;
  bool inside = false;
  for (std::size_t i = 0, size; i < text.size(); i += size) {
    const bool word = is_word(decode_valid_utf8(text.str().data() + i, size));
    count += word && !inside;
    inside = word;
  }
  return Value(count);
}

Value truncate(In& in, const Value& v, A& arguments) {
  const Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::int64_t length = bound.integer(0, 255);
  const Text end = bound[2] ? in.text(*bound[2]) : Text("...");
  const std::int64_t leeway = bound[3] && !bound[3]->is_none() ? bound.integer(3, 5) : 5;
  const Text text = charged(in, v);
  const auto size = static_cast<std::int64_t>(count_code_points(text.str()));
  const auto end_size = static_cast<std::int64_t>(count_code_points(end.str()));
  if (length < end_size || leeway < 0) template_fail("truncate(): expected length >= {}, got {}", end_size, length);
  if (size <= length || size - length <= leeway) return Value(text);
  Text kept = text.slice(0, byte_offset(text.str(), static_cast<std::size_t>(length - end_size)));
  if (!bound.truthy(1, false)) {
    const std::size_t blank = kept.str().rfind(' ');
    if (blank != std::string::npos) kept = kept.slice(0, blank);
  }
  kept.append(end);
  return Value(std::move(kept));
}

/// Number in a text as int() and float() read it: blanks around it, a sign, underscores between digits.
std::optional<double> parse_float(const std::string& text) {
  std::string s = strip(Text(text), true, true, nullptr).str();
  for (std::size_t i = 1; i + 1 < s.size(); ++i) {
    if (s[i] == '_' && std::isdigit(static_cast<unsigned char>(s[i - 1])) && std::isdigit(static_cast<unsigned char>(s[i + 1]))) s.erase(i, 1);
  }
  const std::size_t sign = !s.empty() && (s[0] == '+' || s[0] == '-') ? 1 : 0;
  if (s.size() == sign || s.size() > 1024 || s[sign] == '+' || s[sign] == '-') return std::nullopt;
  double value = 0;
  const auto [end, code] = std::from_chars(s.data() + sign, s.data() + s.size(), value);
  if (code != std::errc() && code != std::errc::result_out_of_range) return std::nullopt;
  if (end != s.data() + s.size() || s.find('(') != std::string::npos) return std::nullopt;
  if (code == std::errc::result_out_of_range) value = std::strtod(s.c_str() + sign, nullptr);
  return sign && s[0] == '-' ? -value : value;
}

std::optional<std::int64_t> parse_int(const std::string& text, std::int64_t base) {
  std::string s = strip(Text(text), true, true, nullptr).str();
  const bool negative = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '+' || s[0] == '-')) s.erase(0, 1);
  const auto prefix = [&](char letter) { return s.size() > 2 && s[0] == '0' && (s[1] | 0x20) == letter; };
  if ((base == 16 && prefix('x')) || (base == 8 && prefix('o')) || (base == 2 && prefix('b'))) s.erase(0, 2);
  for (std::size_t i = 1; i + 1 < s.size(); ++i) {
    if (s[i] == '_' && s[i - 1] != '_' && s[i + 1] != '_') s.erase(i, 1);
  }
  std::int64_t value = 0;
  if (s.empty() || s[0] == '-' || base < 2 || base > 36) return std::nullopt;
  const auto [end, code] = std::from_chars(s.data(), s.data() + s.size(), value, static_cast<int>(base));
  if (code == std::errc::result_out_of_range) template_fail("the integer {} is too large", s.substr(0, 40));
  if (code != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return negative ? -value : value;
}

std::optional<std::int64_t> truncated(double value) {
  if (std::isnan(value) || std::isinf(value)) return std::nullopt;
  if (std::abs(value) >= 9.2e18) template_fail("the integer {} is too large", float_repr(value));
  return static_cast<std::int64_t>(value);
}

Value int_filter(In&, const Value& v, A& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  const Value otherwise = bound[0] ? *bound[0] : Value(std::int64_t{0});
  if (v.is_text()) {
    if (v.text().size() > 4096) return otherwise;
    if (const auto i = parse_int(v.str(), bound.integer(1, 10))) return Value(*i);
    if (const auto f = parse_float(v.str())) {
      if (const auto i = truncated(*f)) return Value(*i);
    }
    return otherwise;
  }
  if (v.is_float()) {
    const auto i = truncated(v.as_double());
    return i ? Value(*i) : otherwise;
  }
  if (v.is_undefined()) fail_undefined(v);
  const auto i = v.as_int();
  return i ? Value(*i) : otherwise;
}

Value float_filter(In&, const Value& v, A& arguments) {
  const Bound bound("float", arguments, {"default"});
  if (v.is_undefined()) fail_undefined(v);
  if (v.is_number()) return Value(v.as_double());
  if (v.is_text()) {
    if (const auto f = parse_float(v.str())) return Value(*f);
  }
  return bound[0] ? *bound[0] : Value(0.0);
}

Value abs_filter(In&, const Value& v, A&) {
  if (v.is_float()) return Value(std::abs(v.as_double()));
  if (v.is_undefined()) fail_undefined(v);
  const auto i = v.as_int();
  if (!i) template_fail("bad operand type for abs(): '{}'", v.type_name());
  return *i < 0 ? negate(Value(*i)) : Value(*i);
}

/// round(value, precision) of Python: the nearest decimal, ties decided on the exact binary value.
double round_decimal(double value, std::int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < -308) return 0;
  if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
  const double scale = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / scale) * scale;
}

Value round_filter(In&, const Value& v, A& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  const std::int64_t precision = bound.integer(0, 0);
  const std::string method = bound[1] && bound[1]->is_text() ? bound[1]->str() : bound[1] ? "?" : "common";
  if (method != "common" && method != "ceil" && method != "floor") template_fail("round(): method must be common, ceil or floor");
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_number()) template_fail("type {} doesn't define __round__ method", v.type_name());
  if (method == "common") return v.is_float() ? Value(round_decimal(v.as_double(), precision)) : precision >= 0 ? Value(*v.as_int()) : Value(static_cast<std::int64_t>(round_decimal(v.as_double(), precision)));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_double() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value tojson(In& in, const Value& v, A& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.truthy(0, false);
  style.sort_keys = bound.truthy(3, false);
  if (bound[1] && !bound[1]->is_none()) {
    style.item_separator.assign(1, ',');  // json.dumps drops the blank at the ends of lines
    if (bound[1]->is_text()) {
      style.indent = bound[1]->str();
    } else {
      const std::int64_t width = bound.integer(1, 0);
      if (width > 1000) template_fail("tojson(): indent {} is too large", width);
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, width)), ' ');
    }
  }
  if (bound[2] && !bound[2]->is_none()) {
    const std::vector<Value> parts = in.iterate(*bound[2]);
    if (parts.size() != 2 || !parts[0].is_text() || !parts[1].is_text()) template_fail("tojson(): separators must be two strings");
    style.item_separator = parts[0].str();
    style.key_separator = parts[1].str();
    if (style.item_separator.size() + style.key_separator.size() > 1000) template_fail("tojson(): separators are too long");
  }
  return Value(to_json(in.budget, v, style));
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable table = {
      {"upper", upper},       {"lower", lower},   {"capitalize", capitalize},   {"title", title},
      {"trim", trim},         {"replace", replace_filter}, {"string", string_filter}, {"safe", safe},
      {"escape", escape},     {"e", escape},      {"forceescape", force_escape}, {"indent", indent},
      {"format", format},     {"center", center}, {"wordcount", word_count},    {"truncate", truncate},
      {"int", int_filter},    {"float", float_filter}, {"abs", abs_filter},     {"round", round_filter},
      {"tojson", tojson},
  };
  return table;
}

}  // namespace heirloom::text::jinja
