// Tests: the predicates after `is`.
#include <unordered_map>

#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

const Value& operand(Arguments& arguments) {
  if (arguments.positional.empty()) template_fail("the test needs an argument");
  return arguments.positional[0];
}

bool remainder_is(Interpreter& in, const Value& value, const Value& divisor, std::int64_t wanted) {
  return equals(in.budget, binary_operator(in, ExprKind::modulo, value, divisor), Value(wanted));
}

template <int sign, bool or_equal>
bool ordered(Interpreter& in, const Value& value, Arguments& arguments) {
  const int order = compare(in.budget, value, operand(arguments));
  return order == sign || (or_equal && order == 0);
}

template <bool upper>
bool has_case(Interpreter& in, const Value& value, Arguments&) {
  Arguments none;
  return call_method(in, Value(in.text(value)), upper ? "isupper" : "islower", none)->truthy();
}

const std::unordered_map<std::string_view, TestFunction>& tests() {
  using In = Interpreter;
  using A = Arguments;
  static const std::unordered_map<std::string_view, TestFunction> table = {
      {"defined", [](In&, const Value& v, A&) { return !v.is_undefined(); }},
      {"undefined", [](In&, const Value& v, A&) { return v.is_undefined(); }},
      {"none", [](In&, const Value& v, A&) { return v.is_none(); }},
      {"boolean", [](In&, const Value& v, A&) { return v.is_bool(); }},
      {"true", [](In&, const Value& v, A&) { return v.is_bool() && v.boolean(); }},
      {"false", [](In&, const Value& v, A&) { return v.is_bool() && !v.boolean(); }},
      {"integer", [](In&, const Value& v, A&) { return v.is_int(); }},
      {"float", [](In&, const Value& v, A&) { return v.is_float(); }},
      {"number", [](In&, const Value& v, A&) { return v.is_number(); }},
      {"string", [](In&, const Value& v, A&) { return v.is_text(); }},
      {"mapping", [](In&, const Value& v, A&) { return v.is_dict(); }},
      {"iterable", [](In& in, const Value& v, A&) { return in.can_iterate(v); }},
      // an undefined value has a length (0) and so counts, as in the reference
      {"sequence", [](In&, const Value& v, A&) { return v.is_text() || v.is_dict() || v.is_sequence() || v.is_undefined(); }},
      {"callable", [](In&, const Value& v, A&) { return v.is_undefined() || (v.is_object() && v.object()->callable()); }},
      {"escaped", [](In&, const Value& v, A&) { return v.is_text() && v.text().markup; }},
      {"sameas", [](In& in, const Value& v, A& a) { return v.type_name() == operand(a).type_name() && equals(in.budget, v, operand(a)); }},
      {"in", [](In& in, const Value& v, A& a) { return contains(in.budget, operand(a), v); }},
      {"eq", [](In& in, const Value& v, A& a) { return equals(in.budget, v, operand(a)); }},
      {"ne", [](In& in, const Value& v, A& a) { return !equals(in.budget, v, operand(a)); }},
      {"lt", ordered<-1, false>},
      {"le", ordered<-1, true>},
      {"gt", ordered<1, false>},
      {"ge", ordered<1, true>},
      {"even", [](In& in, const Value& v, A&) { return remainder_is(in, v, Value(std::int64_t{2}), 0); }},
      {"odd", [](In& in, const Value& v, A&) { return remainder_is(in, v, Value(std::int64_t{2}), 1); }},
      {"divisibleby", [](In& in, const Value& v, A& a) { return remainder_is(in, v, operand(a), 0); }},
      {"lower", has_case<false>},
      {"upper", has_case<true>},
      {"filter", [](In&, const Value& v, A&) { return v.is_text() && find_filter(v.str()) != nullptr; }},
      {"test", [](In&, const Value& v, A&) { return v.is_text() && find_test(v.str()) != nullptr; }},
  };
  return table;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, std::string_view> aliases = {
      {"==", "eq"}, {"equalto", "eq"}, {"!=", "ne"}, {"<", "lt"}, {"lessthan", "lt"}, {"<=", "le"}, {">", "gt"}, {"greaterthan", "gt"}, {">=", "ge"},
  };
  const auto alias = aliases.find(name);
  const auto it = tests().find(alias == aliases.end() ? name : alias->second);
  return it == tests().end() ? nullptr : it->second;
}

}  // namespace heirloom::text::jinja
