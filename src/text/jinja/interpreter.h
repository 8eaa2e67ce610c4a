// Runs a parsed template. One Interpreter serves one render: it holds the budget, the recursion bound and everything that
// must be taken apart at the end (namespaces, the only values that can form cycles).
#pragma once

#include <ctime>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

namespace heirloom::text::jinja {

struct Scope;
using ScopePtr = std::shared_ptr<Scope>;

struct Scope {
  std::vector<std::pair<Symbol, Value>> variables;
  ScopePtr parent;

  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);
};

struct Namespace final : Object {
  std::vector<std::pair<std::string, Value>> attributes;
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(Interpreter& in, std::string_view name) override;
  void set(Interpreter& in, std::string_view name, Value value);
};

/// A function of the engine, or a method bound to its value.
struct Builtin final : Object {
  using Body = std::function<Value(Interpreter&, Arguments&)>;
  std::string name;
  Body body;
  Builtin(std::string n, Body b) : name(std::move(n)), body(std::move(b)) {}
  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments& arguments) override { return body(in, arguments); }
};

class Interpreter {
 public:
  Interpreter(const Template& source, Budget& budget, std::time_t now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Renders with these variables; call once.
  Text render(const std::vector<std::pair<std::string, Value>>& variables);

  Budget& budget;
  const std::time_t now;  // for strftime_now

  // --- for filters, tests and methods ---
  Value make_list(std::vector<Value> items, ListKind kind = ListKind::list);
  Value make_dict(std::vector<std::pair<Value, Value>> entries);
  /// Elements that a for loop over `value` would see; throws for values that cannot be iterated.
  std::vector<Value> iterate(const Value& value);
  bool can_iterate(const Value& value) const;
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& index);
  Value call(const Value& callee, Arguments& arguments);
  Value filter(std::string_view name, const Value& input, Arguments& arguments);
  bool test(std::string_view name, const Value& input, Arguments& arguments);
  Text text(const Value& value) { return to_text(budget, value); }
  Value make_namespace(Arguments& arguments);

  // --- for macros and recursive loops ---
  enum class Flow { next, break_, continue_ };
  Flow run(const Body& body, const ScopePtr& scope, Text& out);
  Value call_macro(const Macro& macro, const ScopePtr& closure, Arguments& arguments);
  void run_loop(const Statement& loop, const Value& iterable, const ScopePtr& scope, int level, Text& out);

 private:
  struct Deeper {
    explicit Deeper(Interpreter& in);
    ~Deeper() { --in.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Interpreter& in;
  };

  Flow run_statement(const Statement& statement, const ScopePtr& scope, Text& out);
  Flow run_if(const Statement& statement, const ScopePtr& scope, Text& out);
  void run_with(const Statement& statement, const ScopePtr& scope, Text& out);
  void run_call_block(const Statement& statement, const ScopePtr& scope, Text& out);
  Text run_captured(const Body& body, const ScopePtr& scope);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  void write(const Value& value, Text& out);

  Value eval(const Expr& expr, const ScopePtr& scope);
  Value eval_kind(const Expr& expr, const ScopePtr& scope);
  Value eval_name(const Expr& expr, const ScopePtr& scope);
  Value eval_list(const Expr& expr, const ScopePtr& scope, ListKind kind);
  Value eval_dict(const Expr& expr, const ScopePtr& scope);
  Value eval_slice(const Expr& expr, const ScopePtr& scope);
  Value eval_call(const Expr& expr, const ScopePtr& scope, const Value* caller);
  Value eval_filter(const Expr& expr, const ScopePtr& scope, const Value* piped);
  Value eval_test(const Expr& expr, const ScopePtr& scope);
  Value eval_concat(const Expr& expr, const ScopePtr& scope);
  Value eval_compare(const Expr& expr, const ScopePtr& scope);
  Arguments eval_arguments(const Expr& expr, const ScopePtr& scope);

  std::optional<Symbol> symbol_of(std::string_view name) const;

  const Template& template_;
  const std::optional<Symbol> loop_symbol_;
  int depth_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

/// Named access to the arguments of a function, by position or keyword, as Python binds them.
class Bound {
 public:
  Bound(std::string_view function, Arguments& arguments, std::initializer_list<std::string_view> names);
  /// nullptr if the argument was not given.
  const Value* operator[](std::size_t i) const { return values_[i]; }
  bool truthy(std::size_t i, bool otherwise) const { return values_[i] ? values_[i]->truthy() : otherwise; }
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  const Value& required(std::size_t i) const;

 private:
  std::string_view function_;
  std::vector<const Value*> values_;
};

/// `value in container`.
bool contains(Budget& budget, const Value& container, const Value& value);

/// Python's binary operators; throw for types that do not have them.
Value binary_operator(Interpreter& in, ExprKind kind, const Value& left, const Value& right);
Value negate(const Value& value);

/// value[start:stop:step]; null pointers are omitted parts.
Value slice(Interpreter& in, const Value& value, const Value* start, const Value* stop, const Value* step);

/// Methods of strings, lists and dicts. nullopt: the type has no such method.
std::optional<Value> call_method(Interpreter& in, const Value& self, std::string_view name, Arguments& arguments);
bool has_method(const Value& self, std::string_view name);

/// printf-style formatting ("%s" % x) and str.format.
Text format_percent(Interpreter& in, const Text& format, const Value& values);
Text format_braces(Interpreter& in, const Text& format, Arguments& arguments);

/// range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> global_functions();

[[noreturn]] void fail_undefined(const Value& undefined);

}  // namespace heirloom::text::jinja
