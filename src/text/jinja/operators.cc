// Python's operators on values: arithmetic, `in`, slices.
#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

const char* symbol(ExprKind kind) {
  switch (kind) {
    case ExprKind::add: return "+";
    case ExprKind::subtract: return "-";
    case ExprKind::multiply: return "*";
    case ExprKind::divide: return "/";
    case ExprKind::floor_divide: return "//";
    case ExprKind::modulo: return "%";
    default: return "**";
  }
}

[[noreturn]] void fail_types(ExprKind kind, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) fail_undefined(*v);
  }
  template_fail("unsupported operand type(s) for {}: '{}' and '{}'", symbol(kind), a.type_name(), b.type_name());
}

Value float_operator(ExprKind kind, double a, double b) {
  switch (kind) {
    case ExprKind::add: return Value(a + b);
    case ExprKind::subtract: return Value(a - b);
    case ExprKind::multiply: return Value(a * b);
    case ExprKind::divide:
    case ExprKind::floor_divide:
    case ExprKind::modulo: {
      if (b == 0) template_fail("division by zero");
      if (kind == ExprKind::divide) return Value(a / b);
      double mod = std::fmod(a, b);  // CPython, float_divmod: the remainder has the sign of the divisor
      const double quotient = (a - mod) / b - (mod != 0 && (mod < 0) != (b < 0) ? 1 : 0);
      if (mod == 0) mod = std::copysign(0.0, b);
      if (mod != 0 && (mod < 0) != (b < 0)) mod += b;
      if (kind == ExprKind::modulo) return Value(mod);
      if (quotient == 0) return Value(std::copysign(0.0, a / b));
      const double floored = std::floor(quotient);
      return Value(quotient - floored > 0.5 ? floored + 1 : floored);
    }
    default: {
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) template_fail("the result of ** is not a real number");
      return Value(power);
    }
  }
}

Value int_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) template_fail("0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value(exponent == 0 ? std::int64_t{1} : base);
  if (base == -1) return Value(exponent % 2 ? std::int64_t{-1} : std::int64_t{1});
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) {  // at most 63 rounds before it overflows
    if (__builtin_mul_overflow(result, base, &result)) template_fail("the result of ** is too large");
  }
  return Value(result);
}

Value int_operator(ExprKind kind, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (kind) {
    case ExprKind::add: overflow = __builtin_add_overflow(a, b, &result); break;
    case ExprKind::subtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    case ExprKind::multiply: overflow = __builtin_mul_overflow(a, b, &result); break;
    case ExprKind::divide:
      if (b == 0) template_fail("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case ExprKind::floor_divide:
    case ExprKind::modulo: {
      if (b == 0) template_fail("integer division or modulo by zero");
      if (b == -1) return kind == ExprKind::modulo ? Value(std::int64_t{0}) : int_operator(ExprKind::subtract, 0, a);
      const bool adjust = a % b != 0 && (a % b < 0) != (b < 0);
      result = kind == ExprKind::modulo ? a % b + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
      break;
    }
    default: return int_power(a, b);
  }
  if (overflow) template_fail("the result of {} is too large", symbol(kind));
  return Value(result);
}

/// Markup + text escapes the text; plain + plain does not.
Value add_text(Interpreter& in, const Value& a, const Value& b) {
  const bool markup = a.text().markup || b.text().markup;
  const auto part = [&](const Value& v) {
    if (!markup || v.text().markup) return v;
    Arguments none;
    return in.filter("escape", v, none);
  };
  const Value x = part(a);
  const Value y = part(b);
  in.budget.make_text(x.text().size() + y.text().size());
  Text out = x.text();
  out.append(y.text());
  out.markup = markup;
  return Value(std::move(out));
}

Value add_lists(Interpreter& in, const Value& a, const Value& b) {
  in.budget.make_items(a.list().items.size() + b.list().items.size());
  std::vector<Value> items = a.list().items;
  items.insert(items.end(), b.list().items.begin(), b.list().items.end());
  return in.make_list(std::move(items), a.list().kind);
}

Value repeat(Interpreter& in, const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  const std::size_t size = value.is_text() ? value.text().size() : value.list().items.size();
  std::size_t total;
  if (__builtin_mul_overflow(size, times, &total)) total = SIZE_MAX;
  if (value.is_text()) {
    in.budget.make_text(total);
    return Value(value.text().repeated(times));
  }
  in.budget.make_items(total);
  std::vector<Value> items;
  for (std::size_t i = 0; size && i < times; ++i) items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  return in.make_list(std::move(items), value.list().kind);
}

}  // namespace

Value binary_operator(Interpreter& in, ExprKind kind, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_operator(kind, a.as_double(), b.as_double());
    return int_operator(kind, *a.as_int(), *b.as_int());
  }
  if (kind == ExprKind::add) {
    if (a.is_text() && b.is_text()) return add_text(in, a, b);
    if (a.is_sequence() && b.is_sequence() && a.list().kind == b.list().kind) return add_lists(in, a, b);
  }
  if (kind == ExprKind::multiply) {
    if ((a.is_text() || a.is_sequence()) && b.as_int()) return repeat(in, a, *b.as_int());
    if ((b.is_text() || b.is_sequence()) && a.as_int()) return repeat(in, b, *a.as_int());
  }
  if (kind == ExprKind::modulo && a.is_text()) return Value(format_percent(in, a.text(), b));
  fail_types(kind, a, b);
}

Value negate(const Value& value) {
  if (value.is_float()) return Value(-value.as_double());
  if (const auto i = value.as_int()) return int_operator(ExprKind::subtract, 0, *i);
  if (value.is_undefined()) fail_undefined(value);
  template_fail("bad operand type for unary -: '{}'", value.type_name());
}

bool contains(Budget& budget, const Value& container, const Value& value) {
  if (container.is_text()) {
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_text()) template_fail("'in <string>' requires string as left operand, not {}", value.type_name());
    budget.scan(container.text().size() * 2);
    return container.str().find(value.str()) != std::string::npos;
  }
  if (container.is_dict()) {
    budget.scan(value.is_text() ? value.text().size() : container.dict().entries.size() * 64);
    if (!is_hashable(value)) template_fail("unhashable type: '{}'", value.type_name());
    return container.dict().find(value) != nullptr;
  }
  if (container.is_list()) {
    for (const Value& item : container.list().items) {
      if (equals(budget, item, value)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  template_fail("argument of type '{}' is not iterable", container.type_name());
}

Value slice(Interpreter& in, const Value& value, const Value* start, const Value* stop, const Value* step) {
  const bool sequence = value.is_sequence();
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_text() && !sequence) template_fail("'{}' object cannot be sliced", value.type_name());
  const auto integer = [](const Value* v, std::int64_t otherwise) {
    if (!v) return otherwise;
    if (const auto i = v->as_int()) return *i;
    template_fail("slice indices must be integers or None, not '{}'", v->type_name());
  };
  in.budget.scan(value.is_text() ? value.text().size() : 0);
  const auto n = static_cast<std::int64_t>(value.is_text() ? count_code_points(value.str()) : value.list().items.size());
  const std::int64_t stride = std::max(integer(step, 1), -INT64_MAX);
  if (stride == 0) template_fail("slice step cannot be zero");
  const auto clamp = [&](std::int64_t i) {  // as PySlice_AdjustIndices
    if (i < 0) i = i < -n ? -1 : i + n;
    if (i < 0) return stride < 0 ? std::int64_t{-1} : std::int64_t{0};
    return i >= n ? (stride < 0 ? n - 1 : n) : i;
  };
  const std::int64_t first = start ? clamp(integer(start, 0)) : (stride < 0 ? n - 1 : 0);
  const std::int64_t last = stop ? clamp(integer(stop, 0)) : (stride < 0 ? -1 : n);
  if (value.is_text() && stride == 1) {
    const std::size_t begin = byte_offset(value.str(), static_cast<std::size_t>(first));
    const std::size_t end = last <= first ? begin : byte_offset(value.str(), static_cast<std::size_t>(last));
    in.budget.make_text(end - begin);
    return Value(value.text().slice(begin, end));
  }
  std::vector<std::size_t> indexes;
  const auto count = stride > 0 ? (last > first ? (last - first - 1) / stride + 1 : 0)
                                : (first > last ? (first - last - 1) / -stride + 1 : 0);
  in.budget.make_items(static_cast<std::size_t>(count));
  for (std::int64_t k = 0; k < count; ++k) indexes.push_back(static_cast<std::size_t>(first + k * stride));
  if (sequence) {
    std::vector<Value> items;
    for (const std::size_t i : indexes) items.push_back(value.list().items[i]);
    return in.make_list(std::move(items), value.list().kind == ListKind::tuple ? ListKind::tuple : ListKind::list);
  }
  const std::string& s = value.str();
  std::vector<std::size_t> offsets;
  in.budget.make_items(s.size());
  for (std::size_t i = 0, size; i < s.size(); i += size) {
    decode_valid_utf8(s.data() + i, size);
    offsets.push_back(i);
  }
  offsets.push_back(s.size());
  Text out;
  for (const std::size_t i : indexes) out.append(value.text(), offsets[i], offsets[i + 1]);
  return Value(std::move(out));
}

}  // namespace heirloom::text::jinja
