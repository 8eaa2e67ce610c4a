#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/budget.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

bool is_tuple(const Value& value) { return value.is_list() && value.list().kind == ListKind::tuple; }

/// Key of the index of a dict; empty for keys that are found by comparison.
const std::string* index_key(const Value& key) { return key.is_text() ? &key.str() : nullptr; }

bool same_key(const Value& a, const Value& b) {
  Budget free_of_charge(0);  // keys are small: depth and size were charged when they were made
  return equals(free_of_charge, a, b);
}

void append_repr(Budget& budget, const Value& value, Text& out);

void append_sequence(Budget& budget, const std::vector<Value>& items, Text& out) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i) out.append(", ", false);
    append_repr(budget, items[i], out);
  }
}

/// Python's repr of a string: single quotes unless only those occur in it.
void append_quoted(Budget& budget, const Text& text, Text& out) {
  budget.make_text(text.size() + 2);
  const std::string& s = text.str();
  const char quote = s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
  out.append(std::string_view(&quote, 1), false);
  for (std::size_t i = 0; i < s.size();) {
    std::size_t size;
    const char32_t c = decode_valid_utf8(s.data() + i, size);
    std::string escaped;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      escaped = {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      escaped = "\\n";
    } else if (c == '\r') {
      escaped = "\\r";
    } else if (c == '\t') {
      escaped = "\\t";
    } else if (c < 0x20 || c == 0x7F || (c >= 0x80 && c <= 0xA0) || c == 0xAD) {
      escaped = fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out.append(text, i, i + size);
      i += size;
      continue;
    }
    out.append(escaped, text.any_tainted(i, i + size));
    i += size;
  }
  out.append(std::string_view(&quote, 1), false);
}

void append_text(Budget& budget, const Value& value, Text& out) {
  budget.step();
  if (out.size() > Budget::kMaxTextBytes) budget.make_text(out.size());
  if (value.is_undefined()) return;
  if (value.is_none()) return out.append("None", false);
  if (value.is_bool()) return out.append(value.boolean() ? "True" : "False", false);
  if (value.is_int()) return out.append(std::to_string(*value.as_int()), false);
  if (value.is_float()) return out.append(float_repr(value.as_double()), false);
  if (value.is_text()) {
    budget.make_text(value.text().size());
    return out.append(value.text());
  }
  if (value.is_dict()) {
    out.append("{", false);
    bool first = true;
    for (const auto& [key, item] : value.dict().entries) {
      if (!first) out.append(", ", false);
      first = false;
      append_repr(budget, key, out);
      out.append(": ", false);
      append_repr(budget, item, out);
    }
    return out.append("}", false);
  }
  if (value.is_list()) {
    const List& list = value.list();
    if (list.kind == ListKind::generator) return out.append("<generator object>", false);
    const bool tuple = list.kind == ListKind::tuple;
    out.append(tuple ? "(" : "[", false);
    append_sequence(budget, list.items, out);
    if (tuple && list.items.size() == 1) out.append(",", false);
    return out.append(tuple ? ")" : "]", false);
  }
  out.append(fmt::format("<{}>", value.object()->type_name()), false);
}

void append_repr(Budget& budget, const Value& value, Text& out) {
  if (value.is_text()) {
    if (value.text().markup) out.append("Markup(", false);
    append_quoted(budget, value.text(), out);
    return value.text().markup ? out.append(")", false) : void();
  }
  if (value.is_undefined()) return out.append("Undefined", false);
  append_text(budget, value, out);
}

}  // namespace

std::optional<Value> Object::attribute(Interpreter&, std::string_view) { return std::nullopt; }
Value Object::call(Interpreter&, Arguments&) { template_fail("'{}' object is not callable", type_name()); }

std::optional<std::int64_t> Value::as_int() const {
  if (is_bool()) return boolean() ? 1 : 0;
  if (is_int()) return std::get<std::int64_t>(v_);
  return std::nullopt;
}

bool Value::is_sequence() const {
  return is_list() && (list().kind == ListKind::list || list().kind == ListKind::tuple);
}

double Value::as_double() const {
  if (is_float()) return std::get<double>(v_);
  return static_cast<double>(as_int().value_or(0));
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_float()) return as_double() != 0;
  if (is_number()) return *as_int() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return list().kind == ListKind::generator || !list().items.empty();
  if (is_dict()) return !dict().entries.empty();
  return true;
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_text()) return "str";
  if (is_list()) {
    switch (list().kind) {
      case ListKind::list: return "list";
      case ListKind::tuple: return "tuple";
      case ListKind::view: return "dict_items";
      case ListKind::generator: return "generator";
    }
  }
  return is_dict() ? "dict" : object()->type_name();
}

const Value* Dict::find(std::string_view key) const {
  const auto it = index_.find(std::string(key));
  return it == index_.end() ? nullptr : &entries[it->second].second;
}

const Value* Dict::find(const Value& key) const {
  if (const std::string* text = index_key(key)) return find(*text);
  for (const auto& [k, v] : entries) {
    if (!k.is_text() && same_key(k, key)) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  if (const std::string* text = index_key(key)) index_.emplace(*text, entries.size());
  entries.emplace_back(std::move(key), std::move(value));
}

bool is_hashable(const Value& key) {
  if (key.is_dict()) return false;
  if (!key.is_list()) return true;
  if (key.list().kind != ListKind::tuple) return false;
  return std::all_of(key.list().items.begin(), key.list().items.end(), is_hashable);
}

bool equals(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_text() && b.is_text()) {
    if (a.text().size() == b.text().size()) budget.scan(a.text().size());
    return a.str() == b.str();
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_double() == b.as_double();
    return *a.as_int() == *b.as_int();
  }
  if (a.is_undefined() || a.is_none()) return a.is_undefined() ? b.is_undefined() : b.is_none();
  if (a.is_list() && b.is_list()) {
    if (a.list_ptr() == b.list_ptr()) return true;
    if (a.list().kind != b.list().kind || a.list().items.size() != b.list().items.size()) return false;
    for (std::size_t i = 0; i < a.list().items.size(); ++i) {
      if (!equals(budget, a.list().items[i], b.list().items[i])) return false;
    }
    return a.list().kind != ListKind::generator;
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().entries.size() != b.dict().entries.size()) return false;
    for (const auto& [key, value] : a.dict().entries) {
      const Value* other = b.dict().find(key);
      if (!other || !equals(budget, value, *other)) return false;
    }
    return true;
  }
  return a.is_object() && b.is_object() && a.object() == b.object();
}

int compare(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_text() && b.is_text()) {
    budget.scan(std::min(a.text().size(), b.text().size()));
    const int order = a.str().compare(b.str());  // UTF-8 orders as its code points do
    return order < 0 ? -1 : order > 0;
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) {
      const double x = a.as_double(), y = b.as_double();
      if (std::isnan(x) || std::isnan(y)) return 2;  // unordered: every comparison is false
      return x < y ? -1 : x > y;
    }
    return *a.as_int() < *b.as_int() ? -1 : *a.as_int() > *b.as_int();
  }
  if (a.is_list() && b.is_list() && a.list().kind == b.list().kind && (a.list().kind == ListKind::list || is_tuple(a))) {
    const auto& x = a.list().items;
    const auto& y = b.list().items;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equals(budget, x[i], y[i])) return compare(budget, x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) template_fail("{} is undefined", v->undefined().what ? *v->undefined().what : "a value");
  }
  template_fail("'<' not supported between instances of '{}' and '{}'", a.type_name(), b.type_name());
}

Text to_text(Budget& budget, const Value& value) {
  if (value.is_text()) return value.text();
  Text out;
  append_text(budget, value, out);
  return out;
}

Text to_repr(Budget& budget, const Value& value) {
  Text out;
  append_repr(budget, value, out);
  return out;
}

// Python: the shortest digits that read back as the same double, in exponent form below 1e-4 and from 1e16 on.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto sci = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string shortest(digits, sci.ptr);
  const int exponent = std::stoi(shortest.substr(shortest.find('e') + 1));
  if (value != 0 && (exponent < -4 || exponent >= 16)) return shortest;
  const auto fixed = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  std::string out(digits, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace heirloom::text::jinja
