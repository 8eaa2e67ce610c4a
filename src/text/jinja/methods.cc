// Methods of strings, lists and dicts, as Python has them. Methods that would change a value are refused, as in the
// reference's immutable sandbox.
#include <algorithm>
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

using Method = Value (*)(Interpreter&, const Value& self, Arguments&);
using Methods = std::unordered_map<std::string_view, Method>;

const std::string* optional_text(const Value* value, std::string_view what) {
  if (!value || value->is_none()) return nullptr;
  if (!value->is_text()) template_fail("{} must be a string, not '{}'", what, value->type_name());
  return &value->str();
}

const Value& text_argument(const Bound& bound, std::size_t i) {
  const Value& value = bound.required(i);
  if (!value.is_text()) template_fail("argument must be a string, not '{}'", value.type_name());
  return value;
}

template <bool left, bool right>
Value strip_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("strip", arguments, {"chars"});
  in.budget.make_text(self.text().size());
  return Value(strip(self.text(), left, right, optional_text(bound[0], "the characters to strip")));
}

template <Case wanted>
Value case_method(Interpreter& in, const Value& self, Arguments&) {
  in.budget.make_text(self.text().size() * 4);
  return Value(change_case(self.text(), wanted));
}

template <bool from_right>
Value split_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("split", arguments, {"sep", "maxsplit"});
  const std::string* separator = optional_text(bound[0], "the separator");
  if (separator && separator->empty()) template_fail("empty separator");
  in.budget.make_text(self.text().size());
  in.budget.make_items(self.text().size() / (separator ? separator->size() : 1));
  std::vector<Value> parts;
  for (Text& part : split(self.text(), separator ? std::string_view(*separator) : std::string_view(), bound.integer(1, -1), from_right)) {
    parts.emplace_back(std::move(part));
  }
  return in.make_list(std::move(parts));
}

Value splitlines(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("splitlines", arguments, {"keepends"});
  in.budget.make_items(self.text().size());
  std::vector<Value> parts;
  for (Text& line : split_lines(self.text(), bound.truthy(0, false))) parts.emplace_back(std::move(line));
  return in.make_list(std::move(parts));
}

/// The part of `self` that the start and end arguments (code points) select, as bytes.
std::string_view window(Interpreter& in, const Value& self, const Bound& bound, std::size_t& offset) {
  const std::string_view s = self.str();
  in.budget.scan(s.size());
  offset = 0;
  if (!bound[1] && !bound[2]) return s;
  const Value whole = slice(in, self, bound[1] && !bound[1]->is_none() ? bound[1] : nullptr,
                            bound[2] && !bound[2]->is_none() ? bound[2] : nullptr, nullptr);
  const auto n = static_cast<std::int64_t>(count_code_points(s));
  std::int64_t start = bound[1] && !bound[1]->is_none() ? bound.integer(1, 0) : 0;
  if (start < 0) start = std::max<std::int64_t>(0, start + n);
  offset = byte_offset(s, static_cast<std::size_t>(std::min(start, n)));
  return s.substr(offset, whole.text().size());
}

template <bool at_start>
Value affix_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound(at_start ? "startswith" : "endswith", arguments, {"affix", "start", "end"});
  std::size_t offset;
  const std::string_view s = window(in, self, bound, offset);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_text()) template_fail("startswith and endswith need a string or a tuple of strings, not '{}'", affix.type_name());
    return at_start ? s.starts_with(affix.str()) : s.ends_with(affix.str());
  };
  const Value& affix = bound.required(0);
  if (affix.is_list() && affix.list().kind == ListKind::tuple) {
    in.budget.make_items(affix.list().items.size());
    return Value(std::any_of(affix.list().items.begin(), affix.list().items.end(), matches));
  }
  return Value(matches(affix));
}

template <bool from_right, bool must_exist>
Value find_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("find", arguments, {"sub", "start", "end"});
  std::size_t offset;
  const std::string_view s = window(in, self, bound, offset);
  const std::string& wanted = text_argument(bound, 0).str();
  in.budget.scan(s.size() * 2);
  const std::size_t at = from_right ? s.rfind(wanted) : s.find(wanted);
  if (at == std::string_view::npos) {
    if (must_exist) template_fail("substring not found");
    return Value(std::int64_t{-1});
  }
  return Value(static_cast<std::int64_t>(count_code_points(std::string_view(self.str()).substr(0, offset + at))));
}

std::int64_t count_in(std::string_view s, std::string_view wanted) {
  if (wanted.empty()) return static_cast<std::int64_t>(count_code_points(s)) + 1;
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = s.find(wanted, at)) != std::string_view::npos; at += wanted.size()) ++count;
  return count;
}

Value count_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("count", arguments, {"sub", "start", "end"});
  std::size_t offset;
  return Value(count_in(window(in, self, bound, offset), text_argument(bound, 0).str()));
}

Value replace_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"});
  const std::string& from = text_argument(bound, 0).str();
  const Text& to = text_argument(bound, 1).text();
  in.budget.scan(self.text().size());
  std::size_t grown;
  if (__builtin_mul_overflow(static_cast<std::size_t>(count_in(self.str(), from)), to.size(), &grown)) grown = SIZE_MAX / 2;
  in.budget.make_text(self.text().size() + grown);
  return Value(replace(self.text(), from, to, bound.integer(2, -1)));
}

Value join_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("join", arguments, {"iterable"});
  Text out;
  bool first = true;
  for (const Value& item : in.iterate(bound.required(0))) {
    if (!item.is_text()) template_fail("join() needs strings, got '{}'", item.type_name());
    in.budget.make_text(out.size() > Budget::kMaxTextBytes ? out.size() : self.text().size() + item.text().size());
    if (!first) out.append(self.text());
    first = false;
    out.append(item.text());
  }
  return Value(std::move(out));
}

template <bool (*check)(char32_t)>
Value all_characters(Interpreter& in, const Value& self, Arguments&) {
  in.budget.make_text(self.text().size());
  const std::string& s = self.str();
  for (std::size_t i = 0, size; i < s.size(); i += size) {
    if (!check(decode_valid_utf8(s.data() + i, size))) return Value(false);
  }
  return Value(!s.empty());
}
bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_digit(c); }
bool is_space(char32_t c) { return is_python_space(c); }

template <bool upper>
Value is_case(Interpreter& in, const Value& self, Arguments&) {
  in.budget.make_text(self.text().size());
  const std::string& s = self.str();
  bool cased = false;
  for (std::size_t i = 0, size; i < s.size(); i += size) {
    const char32_t c = decode_valid_utf8(s.data() + i, size);
    if (upper ? is_lower(c) : is_upper(c)) return Value(false);
    cased |= is_lower(c) || is_upper(c);
  }
  return Value(cased);
}

template <bool prefix>
Value remove_affix(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound(prefix ? "removeprefix" : "removesuffix", arguments, {"affix"});
  const std::string& affix = text_argument(bound, 0).str();
  const std::string& s = self.str();
  in.budget.make_text(s.size());
  if (affix.empty() || !(prefix ? s.starts_with(affix) : s.ends_with(affix))) return self;
  return Value(prefix ? self.text().slice(affix.size(), s.size()) : self.text().slice(0, s.size() - affix.size()));
}

template <bool from_right>
Value partition(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("partition", arguments, {"sep"});
  const std::string& separator = text_argument(bound, 0).str();
  if (separator.empty()) template_fail("empty separator");
  const std::string& s = self.str();
  in.budget.make_text(s.size());
  const std::size_t at = from_right ? s.rfind(separator) : s.find(separator);
  std::vector<Value> parts(3, Value(Text()));
  if (at == std::string::npos) {
    parts[from_right ? 2 : 0] = self;
  } else {
    parts[0] = Value(self.text().slice(0, at));
    parts[1] = Value(self.text().slice(at, at + separator.size()));
    parts[2] = Value(self.text().slice(at + separator.size(), s.size()));
  }
  return in.make_list(std::move(parts), ListKind::tuple);
}

enum class Side { left, center, right };

template <Side side>
Value pad(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("ljust", arguments, {"width", "fillchar"});
  const auto size = static_cast<std::int64_t>(count_code_points(self.str()));
  const std::int64_t width = bound.integer(0, 0);
  const Text fill = bound[1] ? text_argument(bound, 1).text() : Text(" ");
  if (width <= size) return self;
  const std::int64_t missing = width - size;
  in.budget.make_text(static_cast<std::size_t>(missing) > Budget::kMaxTextBytes ? SIZE_MAX : self.text().size() + static_cast<std::size_t>(missing) * fill.size());
  // str.center puts the odd blank on the left when both the padding and the width are odd (CPython, unicode_center)
  const std::int64_t before = side == Side::left ? 0 : side == Side::right ? missing : missing / 2 + (missing & width & 1);
  Text out = fill.repeated(static_cast<std::size_t>(before));
  out.append(self.text());
  out.append(fill.repeated(static_cast<std::size_t>(missing - before)));
  return Value(std::move(out));
}

Value zfill(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("zfill", arguments, {"width"});
  const auto size = static_cast<std::int64_t>(count_code_points(self.str()));
  const std::int64_t missing = bound.integer(0, 0) - size;
  if (missing <= 0) return self;
  in.budget.make_text(static_cast<std::size_t>(missing));
  const bool sign = !self.str().empty() && (self.str()[0] == '-' || self.str()[0] == '+');
  Text out = self.text().slice(0, sign ? 1 : 0);
  out.append(std::string(static_cast<std::size_t>(missing), '0'), false);
  out.append(self.text(), sign ? 1 : 0, self.text().size());
  return Value(std::move(out));
}

Value format_method(Interpreter& in, const Value& self, Arguments& arguments) {
  return Value(format_braces(in, self.text(), arguments));
}

const Methods& text_methods() {
  static const Methods methods = {
      {"strip", strip_method<true, true>},      {"lstrip", strip_method<true, false>}, {"rstrip", strip_method<false, true>},
      {"upper", case_method<Case::upper>},      {"lower", case_method<Case::lower>},   {"title", case_method<Case::title>},
      {"capitalize", case_method<Case::capitalize>}, {"casefold", case_method<Case::lower>}, {"split", split_method<false>},
      {"rsplit", split_method<true>},           {"splitlines", splitlines},            {"startswith", affix_method<true>},
      {"endswith", affix_method<false>},        {"find", find_method<false, false>},   {"rfind", find_method<true, false>},
      {"index", find_method<false, true>},      {"rindex", find_method<true, true>},   {"count", count_method},
      {"replace", replace_method},              {"join", join_method},                 {"isdigit", all_characters<is_digit>},
      {"isdecimal", all_characters<is_digit>},  {"isnumeric", all_characters<is_digit>}, {"isalpha", all_characters<is_letter>},
      {"isalnum", all_characters<is_alphanumeric>}, {"isspace", all_characters<is_space>}, {"isupper", is_case<true>},
      {"islower", is_case<false>},              {"removeprefix", remove_affix<true>},  {"removesuffix", remove_affix<false>},
      {"partition", partition<false>},          {"rpartition", partition<true>},       {"ljust", pad<Side::left>},
      {"rjust", pad<Side::right>},              {"center", pad<Side::center>},         {"zfill", zfill},
      {"format", format_method},
  };
  return methods;
}

template <int part>  // 0 keys, 1 values, 2 items
Value dict_view(Interpreter& in, const Value& self, Arguments&) {
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().entries) {
    out.push_back(part == 0 ? key : part == 1 ? value : in.make_list({key, value}, ListKind::tuple));
  }
  return in.make_list(std::move(out), ListKind::view);
}

Value dict_get(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("get", arguments, {"key", "default"});
  const Value& key = bound.required(0);
  in.budget.scan(key.is_text() ? key.text().size() : self.dict().entries.size() * 64);
  if (const Value* value = self.dict().find(key)) return *value;
  return bound[1] ? *bound[1] : Value(None{});
}

Value copy_method(Interpreter&, const Value& self, Arguments&) { return self; }

Value refuse_change(Interpreter&, const Value& self, Arguments&) {
  template_fail("chat templates cannot change a {}", self.type_name());
}

const Methods& dict_methods() {
  static const Methods methods = {
      {"keys", dict_view<0>},    {"values", dict_view<1>},     {"items", dict_view<2>},   {"get", dict_get},
      {"copy", copy_method},     {"pop", refuse_change},       {"popitem", refuse_change}, {"update", refuse_change},
      {"clear", refuse_change},  {"setdefault", refuse_change},
  };
  return methods;
}

Value list_index(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("index", arguments, {"value"});
  for (std::size_t i = 0; i < self.list().items.size(); ++i) {
    if (equals(in.budget, self.list().items[i], bound.required(0))) return Value(static_cast<std::int64_t>(i));
  }
  template_fail("the value is not in the list");
}

Value list_count(Interpreter& in, const Value& self, Arguments& arguments) {
  const Bound bound("count", arguments, {"value"});
  std::int64_t count = 0;
  for (const Value& item : self.list().items) count += equals(in.budget, item, bound.required(0));
  return Value(count);
}

const Methods& list_methods() {
  static const Methods methods = {
      {"index", list_index},     {"count", list_count},     {"copy", copy_method},      {"append", refuse_change},
      {"extend", refuse_change}, {"insert", refuse_change}, {"pop", refuse_change},     {"remove", refuse_change},
      {"clear", refuse_change},  {"sort", refuse_change},   {"reverse", refuse_change},
  };
  return methods;
}

Method find_method_of(const Value& self, std::string_view name) {
  const Methods* methods = nullptr;
  if (self.is_text()) methods = &text_methods();
  if (self.is_dict()) methods = &dict_methods();
  if (self.is_list() && self.list().kind != ListKind::generator) methods = &list_methods();
  if (!methods) return nullptr;
  const auto it = methods->find(name);
  return it == methods->end() ? nullptr : it->second;
}

}  // namespace

bool has_method(const Value& self, std::string_view name) { return find_method_of(self, name) != nullptr; }

std::optional<Value> call_method(Interpreter& in, const Value& self, std::string_view name, Arguments& arguments) {
  const Method method = find_method_of(self, name);
  if (!method) return std::nullopt;
  return method(in, self, arguments);
}

}  // namespace heirloom::text::jinja
