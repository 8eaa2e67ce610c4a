// Expressions.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

Value undefined(std::string what) { return Undefined{std::make_shared<const std::string>(std::move(what))}; }

int depth_of(const Value& value) { return value.is_list() ? value.list().depth : value.is_dict() ? value.dict().depth : 0; }

int checked_depth(int deepest) {
  if (deepest >= kMaxValueDepth) template_fail("a value of the chat template is nested more than {} levels deep", kMaxValueDepth);
  return deepest + 1;
}

}  // namespace

void fail_undefined(const Value& value) {
  const auto& what = value.undefined().what;
  template_fail("{}", what ? *what : std::string("a value is undefined"));
}

Value Interpreter::make_list(std::vector<Value> items, ListKind kind) {
  budget.make_items(items.size());
  int deepest = 0;
  for (const Value& value : items) deepest = std::max(deepest, depth_of(value));
  auto list = std::make_shared<List>();
  list->depth = checked_depth(deepest);
  list->items = std::move(items);
  list->kind = kind;
  return Value(std::move(list));
}

Value Interpreter::make_dict(std::vector<std::pair<Value, Value>> entries) {
  budget.make_items(entries.size() * 3);
  int deepest = 0;
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : entries) {
    if (!is_hashable(key)) template_fail("unhashable type: '{}'", key.type_name());
    if (!key.is_text()) budget.make_items(dict->entries.size());  // such keys are found by comparison
    deepest = std::max({deepest, depth_of(key), depth_of(value)});
    dict->set(std::move(key), std::move(value));
  }
  dict->depth = checked_depth(deepest);
  return Value(std::move(dict));
}

bool Interpreter::can_iterate(const Value& value) const {
  return value.is_text() || value.is_list() || value.is_dict() || value.is_undefined();
}

std::vector<Value> Interpreter::iterate(const Value& value) {
  std::vector<Value> out;
  if (value.is_list()) {
    List& list = value.list();
    budget.make_items(list.items.size());
    return list.kind == ListKind::generator ? std::exchange(list.items, {}) : list.items;
  }
  if (value.is_dict()) {
    budget.make_items(value.dict().entries.size());
    for (const auto& entry : value.dict().entries) out.push_back(entry.first);
    return out;
  }
  if (value.is_text()) {
    const std::string& s = value.str();
    budget.make_items(s.size() * 8);  // one string each
    for (std::size_t i = 0, size; i < s.size(); i += size) {
      decode_valid_utf8(s.data() + i, size);
      out.emplace_back(value.text().slice(i, i + size));
    }
    return out;
  }
  if (value.is_undefined()) return out;
  template_fail("'{}' object is not iterable", value.type_name());
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.is_object()) {
    if (auto value = object.object()->attribute(*this, name)) return *value;
    return undefined(fmt::format("'{}' object has no attribute '{}'", object.type_name(), name));
  }
  if (has_method(object, name)) {
    return Value(ObjectPtr(std::make_shared<Builtin>(std::string(name), [object, method = std::string(name)](Interpreter& in, Arguments& arguments) {
      return *call_method(in, object, method, arguments);
    })));
  }
  if (object.is_dict()) {
    if (const Value* value = object.dict().find(name)) return *value;
  }
  return undefined(fmt::format("'{}{}' has no attribute '{}'", object.type_name(), object.is_none() ? "" : " object", name));
}

Value Interpreter::item(const Value& object, const Value& index) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.is_dict()) {
    budget.scan(index.is_text() ? index.text().size() : object.dict().entries.size() * 64);
    if (!is_hashable(index)) return undefined(fmt::format("unhashable type: '{}'", index.type_name()));
    if (const Value* value = object.dict().find(index)) return *value;
  } else if (const auto i = index.as_int(); i && object.is_sequence()) {
    const auto n = static_cast<std::int64_t>(object.list().items.size());
    if (*i >= -n && *i < n) return object.list().items[static_cast<std::size_t>(*i < 0 ? *i + n : *i)];
  } else if (i && object.is_text()) {
    const std::string& s = object.str();
    budget.scan(s.size());
    const auto n = static_cast<std::int64_t>(count_code_points(s));
    if (*i >= -n && *i < n) {
      const std::size_t at = byte_offset(s, static_cast<std::size_t>(*i < 0 ? *i + n : *i));
      std::size_t size;
      decode_valid_utf8(s.data() + at, size);
      return Value(object.text().slice(at, at + size));
    }
  }
  if (index.is_text()) return attribute(object, index.str());
  return undefined(fmt::format("'{} object' has no element {}", object.type_name(), to_repr(budget, index).str()));
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  if (callee.is_undefined()) fail_undefined(callee);
  if (!callee.is_object() || !callee.object()->callable()) template_fail("'{}' object is not callable", callee.type_name());
  return callee.object()->call(*this, arguments);
}

Value Interpreter::filter(std::string_view name, const Value& input, Arguments& arguments) {
  const FilterFunction function = find_filter(name);
  if (!function) template_fail("no filter named '{}'", name);
  return function(*this, input, arguments);
}

bool Interpreter::test(std::string_view name, const Value& input, Arguments& arguments) {
  const TestFunction function = find_test(name);
  if (!function) template_fail("no test named '{}'", name);
  return function(*this, input, arguments);
}

Value Interpreter::eval(const Expr& expr, const ScopePtr& scope) {
  budget.step();
  if (expr.kind == ExprKind::constant) return expr.constant;
  if (expr.kind == ExprKind::name) return eval_name(expr, scope);
  const Deeper deeper(*this);
  try {
    return eval_kind(expr, scope);
  } catch (const Error& error) {
    // The innermost expression names its line; the outer ones pass the error on.
    if (std::string_view(error.what()).starts_with("chat template line")) throw;
    throw error.wrap(fmt::format("chat template line {}", expr.line));
  }
}

Value Interpreter::eval_kind(const Expr& expr, const ScopePtr& scope) {
  const auto arg = [&](std::size_t i) { return eval(*expr.args[i], scope); };
  switch (expr.kind) {
    case ExprKind::constant: return expr.constant;
    case ExprKind::name: return eval_name(expr, scope);
    case ExprKind::list: return eval_list(expr, scope, ListKind::list);
    case ExprKind::tuple: return eval_list(expr, scope, ListKind::tuple);
    case ExprKind::dict: return eval_dict(expr, scope);
    case ExprKind::attribute: return attribute(arg(0), expr.text);
    case ExprKind::item: {
      const Value object = arg(0);
      return item(object, arg(1));
    }
    case ExprKind::slice_item: return eval_slice(expr, scope);
    case ExprKind::call: return eval_call(expr, scope, nullptr);
    case ExprKind::filter: return eval_filter(expr, scope, nullptr);
    case ExprKind::test: return eval_test(expr, scope);
    case ExprKind::negative: return negate(arg(0));
    case ExprKind::positive: {
      const Value value = arg(0);
      if (!value.is_number()) template_fail("bad operand type for unary +: '{}'", value.type_name());
      return value.is_bool() ? Value(*value.as_int()) : value;
    }
    case ExprKind::not_: return Value(!arg(0).truthy());
    case ExprKind::and_: {
      Value left = arg(0);
      return left.truthy() ? arg(1) : left;
    }
    case ExprKind::or_: {
      Value left = arg(0);
      return left.truthy() ? left : arg(1);
    }
    case ExprKind::concat: return eval_concat(expr, scope);
    case ExprKind::compare: return eval_compare(expr, scope);
    case ExprKind::conditional:
      if (arg(0).truthy()) return arg(1);
      return expr.args[2] ? arg(2) : undefined("the condition of an inline if is false and it has no else");
    default: {
      const Value left = arg(0);
      return binary_operator(*this, expr.kind, left, arg(1));
    }
  }
}

Value Interpreter::eval_name(const Expr& expr, const ScopePtr& scope) {
  if (const Value* value = scope->find(expr.symbol)) return *value;
  return undefined(fmt::format("'{}' is undefined", expr.text));
}

Value Interpreter::eval_list(const Expr& expr, const ScopePtr& scope, ListKind kind) {
  std::vector<Value> items;
  items.reserve(expr.args.size());
  for (const auto& arg : expr.args) items.push_back(eval(*arg, scope));
  return make_list(std::move(items), kind);
}

Value Interpreter::eval_dict(const Expr& expr, const ScopePtr& scope) {
  std::vector<std::pair<Value, Value>> entries;
  for (std::size_t i = 0; i < expr.args.size(); i += 2) {
    Value key = eval(*expr.args[i], scope);
    entries.emplace_back(std::move(key), eval(*expr.args[i + 1], scope));
  }
  return make_dict(std::move(entries));
}

Value Interpreter::eval_slice(const Expr& expr, const ScopePtr& scope) {
  Value parts[4];
  for (std::size_t i = 0; i < 4; ++i) {
    if (expr.args[i]) parts[i] = eval(*expr.args[i], scope);
  }
  const auto given = [&](std::size_t i) { return expr.args[i] && !parts[i].is_none() ? &parts[i] : nullptr; };
  return slice(*this, parts[0], given(1), given(2), given(3));
}

Arguments Interpreter::eval_arguments(const Expr& expr, const ScopePtr& scope) {
  Arguments arguments;
  for (std::size_t i = 1; i < expr.args.size(); ++i) arguments.positional.push_back(eval(*expr.args[i], scope));
  if (expr.star_args) {
    for (Value& value : iterate(eval(*expr.star_args, scope))) arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, eval(*value, scope));
  if (expr.star_named) {
    const Value extra = eval(*expr.star_named, scope);
    if (!extra.is_dict()) template_fail("the argument after ** must be a mapping, not {}", extra.type_name());
    for (const auto& [key, value] : extra.dict().entries) {
      if (!key.is_text()) template_fail("keywords must be strings");
      arguments.named.emplace_back(key.str(), value);
    }
  }
  return arguments;
}

Value Interpreter::eval_call(const Expr& expr, const ScopePtr& scope, const Value* caller) {
  const Expr& target = *expr.args[0];
  Value self;
  const bool is_method = target.kind == ExprKind::attribute;
  if (is_method) self = eval(*target.args[0], scope);
  const bool direct = is_method && has_method(self, target.text);
  const Value callee = direct ? Value() : is_method ? attribute(self, target.text) : eval(target, scope);
  Arguments arguments = eval_arguments(expr, scope);
  if (caller) arguments.named.emplace_back("caller", *caller);
  return direct ? *call_method(*this, self, target.text, arguments) : call(callee, arguments);
}

Value Interpreter::eval_filter(const Expr& expr, const ScopePtr& scope, const Value* piped) {
  Value input;
  if (!expr.args[0]) {
    input = *piped;
  } else if (piped && expr.args[0]->kind == ExprKind::filter) {
    input = eval_filter(*expr.args[0], scope, piped);
  } else {
    input = eval(*expr.args[0], scope);
  }
  if (!expr.filter) template_fail("no filter named '{}'", expr.text);
  Arguments arguments = eval_arguments(expr, scope);
  return expr.filter(*this, input, arguments);
}

Value Interpreter::eval_test(const Expr& expr, const ScopePtr& scope) {
  const Value input = eval(*expr.args[0], scope);
  if (!expr.test) template_fail("no test named '{}'", expr.text);
  Arguments arguments = eval_arguments(expr, scope);
  return Value(expr.test(*this, input, arguments));
}

Value Interpreter::eval_concat(const Expr& expr, const ScopePtr& scope) {
  Text out;
  for (const auto& arg : expr.args) {
    const Value value = eval(*arg, scope);
    write(value, out);
  }
  return Value(std::move(out));
}

Value Interpreter::eval_compare(const Expr& expr, const ScopePtr& scope) {
  Value left = eval(*expr.args[0], scope);
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = eval(*expr.args[i + 1], scope);
    bool holds = false;
    switch (expr.operators[i]) {
      case CompareOp::eq: holds = equals(budget, left, right); break;
      case CompareOp::ne: holds = !equals(budget, left, right); break;
      case CompareOp::lt: holds = compare(budget, left, right) == -1; break;
      case CompareOp::le: holds = compare(budget, left, right) <= 0; break;
      case CompareOp::gt: holds = compare(budget, left, right) == 1; break;
      case CompareOp::ge: holds = compare(budget, left, right) == 0 || compare(budget, left, right) == 1; break;
      case CompareOp::in: holds = contains(budget, right, left); break;
      case CompareOp::not_in: holds = !contains(budget, right, left); break;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Bound::Bound(std::string_view function, Arguments& arguments, std::initializer_list<std::string_view> names)
    : function_(function), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size()) {
    template_fail("{}() takes at most {} argument(s), got {}", function, names.size(), arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) template_fail("{}() got an unexpected keyword argument '{}'", function, name);
    auto& slot = values_[static_cast<std::size_t>(it - names.begin())];
    if (slot) template_fail("{}() got multiple values for argument '{}'", function, name);
    slot = &value;
  }
}

std::int64_t Bound::integer(std::size_t i, std::int64_t otherwise) const {
  if (!values_[i]) return otherwise;
  const auto value = values_[i]->as_int();
  if (!value) template_fail("{}() needs an integer, got '{}'", function_, values_[i]->type_name());
  return *value;
}

const Value& Bound::required(std::size_t i) const {
  if (!values_[i]) template_fail("{}() misses argument {}", function_, i + 1);
  return *values_[i];
}

}  // namespace heirloom::text::jinja
