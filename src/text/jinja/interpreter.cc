#include "text/jinja/interpreter.h"

#include <algorithm>

namespace heirloom::text::jinja {
namespace {

constexpr int kMaxDepth = 800;  // nested evaluations: some 1 MB of stack in a release build

/// {% for %}: what `loop` is inside.
struct Loop final : Object, std::enable_shared_from_this<Loop> {
  const Statement* statement;
  ScopePtr scope;  // where the loop stands, for recursive calls; empty unless recursive
  std::vector<Value> items;
  std::size_t index = 0;
  int level = 1;
  Value last_changed;
  bool any_changed = false;

  std::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return scope != nullptr; }
  Value call(Interpreter& in, Arguments& arguments) override {
    if (!scope) template_fail("the loop is not recursive: write {{% for ... recursive %}}");
    const Bound bound("loop", arguments, {"iterable"});
    Text out;
    in.run_loop(*statement, bound.required(0), scope, level + 1, out);
    return Value(std::move(out));
  }
  std::optional<Value> attribute(Interpreter&, std::string_view name) override {
    const auto i = static_cast<std::int64_t>(index);
    const auto n = static_cast<std::int64_t>(items.size());
    if (name == "index") return Value(i + 1);
    if (name == "index0") return Value(i);
    if (name == "revindex") return Value(n - i);
    if (name == "revindex0") return Value(n - i - 1);
    if (name == "first") return Value(i == 0);
    if (name == "last") return Value(i + 1 == n);
    if (name == "length") return Value(n);
    if (name == "depth") return Value(std::int64_t{level});
    if (name == "depth0") return Value(std::int64_t{level - 1});
    if (name == "previtem") return index > 0 ? items[index - 1] : undefined("there is no previous item");
    if (name == "nextitem") return index + 1 < items.size() ? items[index + 1] : undefined("there is no next item");
    if (name == "cycle") {
      return Value(ObjectPtr(std::make_shared<Builtin>("cycle", [at = index](Interpreter&, Arguments& arguments) {
        if (arguments.positional.empty()) template_fail("no items for cycling given");
        return arguments.positional[at % arguments.positional.size()];
      })));
    }
    if (name == "changed") {
      return Value(ObjectPtr(std::make_shared<Builtin>("changed", [self = weak_from_this()](Interpreter& in, Arguments& arguments) {
        const auto loop = self.lock();  // weak: what changed() remembers may hold this very function
        if (!loop) template_fail("loop.changed() is called after its loop");
        const Value now = in.make_list(std::move(arguments.positional), ListKind::tuple);
        const bool changed = !loop->any_changed || !equals(in.budget, now, loop->last_changed);
        loop->last_changed = now;
        loop->any_changed = true;
        return Value(changed);
      })));
    }
    return std::nullopt;
  }

 private:
  static Value undefined(const char* what) { return Undefined{std::make_shared<const std::string>(what)}; }
};

struct MacroObject final : Object {
  const Macro* macro;
  std::weak_ptr<Scope> closure;  // weak: a macro kept in its own scope would keep that scope for ever
  MacroObject(const Macro* m, const ScopePtr& scope) : macro(m), closure(scope) {}
  std::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  std::optional<Value> attribute(Interpreter&, std::string_view name) override {
    if (name == "name") return Value(Text(macro->name));
    return std::nullopt;
  }
  Value call(Interpreter& in, Arguments& arguments) override {
    const ScopePtr scope = closure.lock();
    if (!scope) template_fail("macro '{}' is called outside of the block that defines it", macro->name);
    return in.call_macro(*macro, scope, arguments);
  }
};

ScopePtr inner_scope(const ScopePtr& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

}  // namespace

const Value* Scope::find(Symbol symbol) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get()) {
    for (const auto& [name, value] : scope->variables) {
      if (name == symbol) return &value;
    }
  }
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  for (auto& [name, old] : variables) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(symbol, std::move(value));
}

Interpreter::Deeper::Deeper(Interpreter& interpreter) : in(interpreter) {
  if (++in.depth_ > kMaxDepth) {
    --in.depth_;
    template_fail("the chat template recurses too deeply");
  }
}

std::optional<Symbol> Interpreter::symbol_of(std::string_view name) const {
  const auto it = std::find(template_.names.begin(), template_.names.end(), name);
  return it == template_.names.end() ? std::nullopt : std::optional(static_cast<Symbol>(it - template_.names.begin()));
}

Interpreter::Interpreter(const Template& source, Budget& b, std::time_t t)
    : budget(b), now(t), template_(source), loop_symbol_(symbol_of("loop")) {}

// Namespaces may refer to each other in long chains and circles. They are all still held here, so emptying them one after
// the other frees everything without recursion.
Interpreter::~Interpreter() {
  for (const auto& ns : namespaces_) ns->attributes.clear();
}

Text Interpreter::render(const std::vector<std::pair<std::string, Value>>& variables) {
  const auto globals = std::make_shared<Scope>();
  const auto define = [&](const std::string& name, const Value& value) {
    if (const auto symbol = symbol_of(name)) globals->set(*symbol, value);  // the template may never mention it
  };
  for (const auto& [name, value] : global_functions()) define(name, value);
  for (const auto& [name, value] : variables) define(name, value);
  Text out;
  run(template_.body, inner_scope(globals), out);
  return out;
}

void Interpreter::write(const Value& value, Text& out) {
  if (value.is_text()) {
    budget.make_text(value.text().size());
    out.append(value.text());
  } else {
    out.append(text(value));
  }
  if (out.size() > Budget::kMaxTextBytes) budget.make_text(out.size());
}

Interpreter::Flow Interpreter::run(const Body& body, const ScopePtr& scope, Text& out) {
  const Deeper deeper(*this);
  for (const Statement& statement : body) {
    const Flow flow = run_statement(statement, scope, out);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const ScopePtr& scope, Text& out) {
  budget.step();
  switch (statement.kind) {
    case StatementKind::data: write(Value(statement.data), out); break;
    case StatementKind::output: write(eval(*statement.expressions[0], scope), out); break;
    case StatementKind::if_: return run_if(statement, scope, out);
    case StatementKind::for_: run_loop(statement, eval(*statement.expressions[0], scope), scope, 1, out); break;
    case StatementKind::set: assign(statement.targets[0], eval(*statement.expressions[0], scope), scope); break;
    case StatementKind::set_block: {
      Value value(run_captured(statement.bodies[0], inner_scope(scope)));
      if (!statement.expressions.empty()) value = eval_filter(*statement.expressions[0], scope, &value);
      assign(statement.targets[0], value, scope);
      break;
    }
    case StatementKind::macro:
      scope->set(statement.macro->symbol, Value(ObjectPtr(std::make_shared<MacroObject>(statement.macro.get(), scope))));
      break;
    case StatementKind::call_block: run_call_block(statement, scope, out); break;
    case StatementKind::filter_block: {
      const Value value(run_captured(statement.bodies[0], inner_scope(scope)));
      write(eval_filter(*statement.expressions[0], scope, &value), out);
      break;
    }
    case StatementKind::with: run_with(statement, scope, out); break;
    case StatementKind::scope: run(statement.bodies[0], inner_scope(scope), out); break;
    case StatementKind::break_: return Flow::break_;
    case StatementKind::continue_: return Flow::continue_;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement, const ScopePtr& scope, Text& out) {
  for (std::size_t i = 0; i < statement.expressions.size(); ++i) {
    if (eval(*statement.expressions[i], scope).truthy()) return run(statement.bodies[i], scope, out);
  }
  return statement.bodies.size() > statement.expressions.size() ? run(statement.bodies.back(), scope, out) : Flow::next;
}

void Interpreter::run_with(const Statement& statement, const ScopePtr& scope, Text& out) {
  const ScopePtr inside = inner_scope(scope);
  for (std::size_t i = 0; i < statement.targets.size(); ++i) {
    assign(statement.targets[i], eval(*statement.expressions[i], scope), inside);
  }
  run(statement.bodies[0], inside, out);
}

void Interpreter::run_call_block(const Statement& statement, const ScopePtr& scope, Text& out) {
  const Value caller(ObjectPtr(std::make_shared<MacroObject>(statement.macro.get(), scope)));
  write(eval_call(*statement.expressions[0], scope, &caller), out);
}

Text Interpreter::run_captured(const Body& body, const ScopePtr& scope) {
  Text out;
  run(body, scope, out);
  return out;
}

void Interpreter::run_loop(const Statement& statement, const Value& iterable, const ScopePtr& scope, int level, Text& out) {
  const Deeper deeper(*this);
  auto loop = std::make_shared<Loop>();
  loop->statement = &statement;
  loop->level = level;
  if (statement.recursive) loop->scope = scope;
  loop->items = iterate(iterable);
  if (const auto& condition = statement.expressions[1]) {
    std::vector<Value> kept;
    for (Value& value : loop->items) {
      const ScopePtr inside = inner_scope(scope);
      assign(statement.targets[0], value, inside);
      if (eval(*condition, inside).truthy()) kept.push_back(std::move(value));
    }
    loop->items = std::move(kept);
  }
  for (; loop->index < loop->items.size(); ++loop->index) {
    budget.step();
    const ScopePtr inside = inner_scope(scope);
    if (loop_symbol_) inside->set(*loop_symbol_, Value(ObjectPtr(loop)));
    assign(statement.targets[0], loop->items[loop->index], inside);
    if (run(statement.bodies[0], inside, out) == Flow::break_) return;
  }
  if (loop->items.empty()) run(statement.bodies[1], inner_scope(scope), out);
}

void Interpreter::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (!target.parts.empty()) {
    const std::vector<Value> parts = iterate(value);
    if (parts.size() != target.parts.size()) {
      template_fail("cannot unpack {} values into {} names", parts.size(), target.parts.size());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i], scope);
    return;
  }
  if (target.attribute.empty()) return scope->set(target.symbol, value);
  const Value* object = scope->find(target.symbol);
  const auto ns = object && object->is_object() ? std::dynamic_pointer_cast<Namespace>(object->object()) : nullptr;
  if (!ns) template_fail("cannot assign to '{}.{}': '{}' is not a namespace", target.name, target.attribute, target.name);
  ns->set(*this, target.attribute, value);
}

Value Interpreter::call_macro(const Macro& macro, const ScopePtr& closure, Arguments& arguments) {
  const Deeper deeper(*this);
  const ScopePtr scope = inner_scope(closure);
  const std::size_t count = macro.parameters.size();
  std::vector<const Value*> given(count, nullptr);
  for (std::size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) given[i] = &arguments.positional[i];
  std::vector<Value> varargs;
  if (arguments.positional.size() > count) {
    if (!macro.uses_varargs) {
      template_fail("macro '{}' takes not more than {} argument(s)", macro.name, count);
    }
    varargs.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count), arguments.positional.end());
  }
  std::vector<std::pair<Value, Value>> kwargs;
  Value caller = Undefined{std::make_shared<const std::string>("no caller")};
  for (const auto& argument : arguments.named) {
    const auto& [name, value] = argument;
    const auto it = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                 [&argument](const auto& parameter) { return parameter.first == argument.first; });
    if (it != macro.parameters.end()) {
      auto& slot = given[static_cast<std::size_t>(it - macro.parameters.begin())];
      if (slot) template_fail("macro '{}' got multiple values for argument '{}'", macro.name, name);
      slot = &value;
    } else if (name == "caller") {
      if (!macro.uses_caller) template_fail("macro '{}' takes no caller", macro.name);
      caller = value;
    } else if (macro.uses_kwargs) {
      kwargs.emplace_back(Value(Text(name)), value);
    } else {
      template_fail("macro '{}' takes no keyword argument '{}'", macro.name, name);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first_default = count - macro.defaults.size();
    Value value = Undefined{std::make_shared<const std::string>(fmt::format("parameter '{}' was not provided", macro.parameters[i].first))};
    if (given[i]) {
      value = *given[i];
    } else if (i >= first_default) {
      value = eval(*macro.defaults[i - first_default], scope);
    }
    scope->set(macro.parameters[i].second, std::move(value));
  }
  if (macro.uses_varargs) scope->set(macro.varargs, make_list(std::move(varargs), ListKind::tuple));
  if (macro.uses_kwargs) scope->set(macro.kwargs, make_dict(std::move(kwargs)));
  if (macro.uses_caller) scope->set(macro.caller, std::move(caller));
  Text out;
  run(macro.body, scope, out);
  return Value(std::move(out));
}

std::optional<Value> Namespace::attribute(Interpreter&, std::string_view name) {
  for (const auto& [key, value] : attributes) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(Interpreter& in, std::string_view name, Value value) {
  if (name.starts_with('_')) template_fail("a namespace cannot have the attribute '{}'", name);
  for (auto& [key, old] : attributes) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  in.budget.make_items(1);
  attributes.emplace_back(std::string(name), std::move(value));
}

Value Interpreter::make_namespace(Arguments& arguments) {
  budget.make_items(4);
  auto ns = std::make_shared<Namespace>();
  namespaces_.push_back(ns);
  for (const Value& value : arguments.positional) {
    if (!value.is_dict()) template_fail("namespace() takes a mapping or keyword arguments");
    for (const auto& [key, item] : value.dict().entries) {
      if (key.is_text()) ns->set(*this, key.str(), item);
    }
  }
  for (const auto& [name, value] : arguments.named) ns->set(*this, name, value);
  return Value(ObjectPtr(ns));
}

}  // namespace heirloom::text::jinja
