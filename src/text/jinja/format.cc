// printf-style formatting ("%5.2f" % x, the format filter) and str.format, in the parts that templates use.
#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

struct Spec {
  bool left = false, zero = false, plus = false, blank = false, alternate = false, center = false;
  std::string fill = " ";
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = 0;
};

std::int64_t read_number(std::string_view s, std::size_t& at) {
  std::int64_t value = 0;
  while (at < s.size() && s[at] >= '0' && s[at] <= '9') {
    value = value * 10 + (s[at++] - '0');
    if (value > static_cast<std::int64_t>(Budget::kMaxTextBytes)) template_fail("a format width is too large");
  }
  return value;
}

void append_padded(Interpreter& in, const Text& text, const Spec& spec, bool right_by_default, Text& out) {
  const auto size = static_cast<std::int64_t>(count_code_points(text.str()));
  const std::int64_t missing = std::max<std::int64_t>(0, spec.width - size);
  in.budget.make_text(out.size() > Budget::kMaxTextBytes ? out.size() : text.size() + static_cast<std::size_t>(missing) * spec.fill.size());
  const std::int64_t before = spec.center ? missing / 2 : (right_by_default && !spec.left) ? missing : 0;
  const Text fill(spec.fill);
  out.append(fill.repeated(static_cast<std::size_t>(before)));
  out.append(text);
  out.append(fill.repeated(static_cast<std::size_t>(missing - before)));
}

std::string format_float(double value, const Spec& spec) {
  if (spec.precision > 300) template_fail("a format precision is too large");
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  char buffer[1024];
  const char pattern[] = {'%', '.', '*', spec.type == 'i' ? 'f' : spec.type, '\0'};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(buffer, sizeof buffer, pattern, precision, value);
#pragma GCC diagnostic pop
  return buffer;
}

std::string with_commas(std::string digits) {
  const std::size_t first = digits.find_first_of("0123456789");
  const std::size_t point = std::min(digits.find('.'), digits.size());
  for (std::size_t i = point; i > first + 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

/// A number in the wanted type, with sign and zero padding.
Text format_number(const Value& value, const Spec& spec, bool commas) {
  std::string digits;
  const bool as_float = std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos && spec.type;
  if (as_float) {
    Spec used = spec;
    if (spec.type == '%') used.type = 'f';
    digits = format_float(value.as_double() * (spec.type == '%' ? 100 : 1), used);
    if (spec.type == '%') digits += '%';
  } else if (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b') {
    const auto integer = value.as_int();
    if (!integer) template_fail("format %{} needs an integer, not {}", spec.type, value.type_name());
    const std::uint64_t magnitude = *integer < 0 ? 0 - static_cast<std::uint64_t>(*integer) : static_cast<std::uint64_t>(*integer);
    digits = spec.type == 'x' ? fmt::format("{:x}", magnitude) : spec.type == 'X' ? fmt::format("{:X}", magnitude)
           : spec.type == 'o' ? fmt::format("{:o}", magnitude) : fmt::format("{:b}", magnitude);
    if (*integer < 0) digits.insert(0, 1, '-');
  } else {
    const auto integer = value.as_int();
    const double truncated = std::trunc(value.as_double());
    if (!integer && !(std::abs(truncated) < 9e18)) template_fail("cannot convert {} to integer", float_repr(value.as_double()));
    digits = std::to_string(integer ? *integer : static_cast<std::int64_t>(truncated));
  }
  if (commas) digits = with_commas(std::move(digits));
  if (digits[0] != '-' && (spec.plus || spec.blank)) digits.insert(0, 1, spec.plus ? '+' : ' ');
  const auto width = static_cast<std::size_t>(spec.width);
  if (spec.zero && !spec.left && digits.size() < width) {
    const bool sign = digits[0] == '-' || digits[0] == '+' || digits[0] == ' ';
    digits.insert(sign ? 1 : 0, width - digits.size(), '0');
  }
  return Text(std::move(digits));
}

Text cut(Interpreter& in, const Value& value, std::int64_t precision) {
  const Value limit(precision);
  return precision < 0 ? value.text() : slice(in, value, nullptr, &limit, nullptr).text();
}

Spec read_percent_spec(std::string_view s, std::size_t& at) {
  Spec spec;
  for (; at < s.size(); ++at) {
    if (s[at] == '-') spec.left = true;
    else if (s[at] == '0') spec.zero = true;
    else if (s[at] == '+') spec.plus = true;
    else if (s[at] == ' ') spec.blank = true;
    else if (s[at] == '#') spec.alternate = true;
    else break;
  }
  spec.width = read_number(s, at);
  if (at < s.size() && s[at] == '.') spec.precision = read_number(s, ++at);
  while (at < s.size() && (s[at] == 'l' || s[at] == 'h' || s[at] == 'L')) ++at;
  if (at >= s.size()) template_fail("incomplete format");
  spec.type = s[at++];
  return spec;
}

/// [[fill]align][sign][0][width][,][.precision][type]
Text format_spec(Interpreter& in, const Value& value, std::string_view s) {
  Spec spec;
  std::size_t at = 0;
  bool aligned = false;
  bool right = value.is_number();
  const auto align = [&](char c) { return c == '<' || c == '>' || c == '^'; };
  if (!s.empty()) {
    std::size_t size;
    decode_valid_utf8(s.data(), size);
    if (size < s.size() && align(s[size])) {
      spec.fill = s.substr(0, size);
      at = size;
    }
  }
  if (at < s.size() && align(s[at])) {
    aligned = true;
    right = s[at] == '>';
    spec.center = s[at] == '^';
    ++at;
  }
  if (at < s.size() && (s[at] == '+' || s[at] == '-' || s[at] == ' ')) {
    spec.plus = s[at] == '+';
    spec.blank = s[at] == ' ';
    ++at;
  }
  if (at < s.size() && s[at] == '0') spec.zero = !aligned, ++at;
  spec.width = read_number(s, at);
  const bool commas = at < s.size() && s[at] == ',';
  if (commas) ++at;
  if (at < s.size() && s[at] == '.') spec.precision = read_number(s, ++at);
  if (at < s.size()) spec.type = s[at++];
  if (at != s.size() || (spec.type && std::string_view("sdfFeEgGxXob%n").find(spec.type) == std::string_view::npos)) {
    template_fail("invalid format specifier '{}'", s);
  }
  Text out;
  if (value.is_number() && spec.type != 's' && !(value.is_bool() && !spec.type)) {
    Text digits;
    if (!spec.type && value.is_float()) {
      if (spec.precision >= 0) spec.type = 'g';
      digits = spec.type ? format_number(value, spec, commas) : Text(commas ? with_commas(float_repr(value.as_double())) : float_repr(value.as_double()));
    } else {
      if (value.is_float() && (spec.type == 'd' || spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b')) {
        template_fail("unknown format code '{}' for object of type 'float'", spec.type);
      }
      digits = format_number(value, spec, commas);
    }
    append_padded(in, digits, spec, right, out);
    return out;
  }
  if (spec.type && spec.type != 's') template_fail("unknown format code '{}' for object of type '{}'", spec.type, value.type_name());
  append_padded(in, cut(in, Value(in.text(value)), spec.precision), spec, right, out);
  return out;
}

}  // namespace

Text format_percent(Interpreter& in, const Text& format, const Value& values) {
  const std::string& s = format.str();
  const bool tuple = values.is_list() && values.list().kind == ListKind::tuple;
  const std::vector<Value> arguments = tuple ? values.list().items : std::vector<Value>{values};
  std::size_t next = 0;
  bool by_name = false;
  Text out;
  for (std::size_t at = 0; at < s.size();) {
    const std::size_t percent = std::min(s.find('%', at), s.size());
    in.budget.make_text(out.size() > Budget::kMaxTextBytes ? out.size() : percent - at);
    out.append(format, at, percent);
    if (percent == s.size()) break;
    at = percent + 1;
    if (at < s.size() && s[at] == '%') {
      out.append("%", false);
      ++at;
      continue;
    }
    Value value;
    if (at < s.size() && s[at] == '(') {
      const std::size_t close = s.find(')', at);
      if (close == std::string::npos) template_fail("incomplete format key");
      if (!values.is_dict()) template_fail("format requires a mapping");
      const Value* found = values.dict().find(std::string_view(s).substr(at + 1, close - at - 1));
      if (!found) template_fail("the format key '{}' is missing", s.substr(at + 1, close - at - 1));
      value = *found;
      by_name = true;
      at = close + 1;
    }
    const Spec spec = read_percent_spec(s, at);
    if (!by_name) {
      if (next >= arguments.size()) template_fail("not enough arguments for format string");
      value = arguments[next++];
    }
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      const Value text(spec.type == 's' ? in.text(value) : to_repr(in.budget, value));
      append_padded(in, cut(in, text, spec.precision), spec, true, out);
    } else if (std::string_view("diufFeEgGxXo").find(spec.type) != std::string_view::npos) {
      if (!value.is_number()) template_fail("%{} format: a number is required, not {}", spec.type, value.type_name());
      append_padded(in, format_number(value, spec, false), spec, true, out);
    } else if (spec.type == 'c' && (value.as_int() || value.is_text())) {
      std::string c;
      if (value.is_text()) {
        c = value.str();
      } else {
        const std::int64_t point = *value.as_int();
        if (point < 0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) template_fail("%c arg not in range(0x110000)");
        append_utf8(c, static_cast<char32_t>(point));
      }
      append_padded(in, Text(c, value.is_text() && value.text().any_tainted(0, c.size())), spec, true, out);
    } else {
      template_fail("unsupported format character '{}'", spec.type);
    }
  }
  // Python forgives unused values that can be subscripted, other than tuples and strings
  const bool forgiven = values.is_undefined() || values.is_dict() || (values.is_list() && !tuple);
  if (!by_name && next < arguments.size() && !forgiven) template_fail("not all arguments converted during string formatting");
  return out;
}

Text format_braces(Interpreter& in, const Text& format, Arguments& arguments) {
  const std::string& s = format.str();
  std::size_t automatic = 0;
  Text out;
  for (std::size_t at = 0; at < s.size();) {
    const char c = s[at];
    if ((c == '{' || c == '}') && at + 1 < s.size() && s[at + 1] == c) {
      out.append(format, at, at + 1);
      at += 2;
      continue;
    }
    if (c == '}') template_fail("single '}}' encountered in format string");
    if (c != '{') {
      const std::size_t end = std::min(s.find_first_of("{}", at), s.size());
      in.budget.make_text(out.size() > Budget::kMaxTextBytes ? out.size() : end - at);
      out.append(format, at, end);
      at = end;
      continue;
    }
    const std::size_t close = s.find('}', at);
    if (close == std::string::npos) template_fail("single '{{' encountered in format string");
    const std::string_view field = std::string_view(s).substr(at + 1, close - at - 1);
    at = close + 1;
    const std::size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    const std::string_view spec = colon < field.size() ? field.substr(colon + 1) : std::string_view();
    if (spec.find('{') != std::string_view::npos) template_fail("nested fields of str.format are not supported");
    char conversion = 0;
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    const std::size_t base = std::min(name.find_first_of(".["), name.size());
    const std::string_view head = name.substr(0, base);
    Value value;
    std::size_t digits = 0;
    if (head.empty() || head.find_first_not_of("0123456789") == std::string_view::npos) {
      const auto index = head.empty() ? automatic++ : static_cast<std::size_t>(read_number(head, digits));
      if (index >= arguments.positional.size()) template_fail("replacement index {} out of range for positional args", index);
      value = arguments.positional[index];
    } else {
      const auto it = std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& n) { return n.first == head; });
      if (it == arguments.named.end()) template_fail("str.format misses the argument '{}'", head);
      value = it->second;
    }
    for (std::size_t i = base; i < name.size();) {
      const bool bracket = name[i] == '[';
      const std::size_t end = std::min(bracket ? name.find(']', i) : name.find_first_of(".[", i + 1), name.size());
      const std::string key(name.substr(i + 1, end - i - 1));
      const bool number = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
      value = bracket && number ? in.item(value, Value(static_cast<std::int64_t>(std::stoll(key))))
                                : bracket ? in.item(value, Value(Text(key))) : in.attribute(value, key);
      i = bracket ? end + 1 : end;
    }
    if (conversion == 'r' || conversion == 'a') value = Value(to_repr(in.budget, value));
    if (conversion == 's') value = Value(in.text(value));
    out.append(format_spec(in, value, spec));
  }
  return out;
}

}  // namespace heirloom::text::jinja
