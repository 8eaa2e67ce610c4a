#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "text/jinja/parser.h"

namespace heirloom::text::jinja {

ExprPtr Parser::make(ExprKind kind, int line) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  return node;
}

ExprPtr Parser::finish(ExprPtr node) const {
  int deepest = 0;
  const auto look_at = [&](const ExprPtr& child) {
    if (child) deepest = std::max(deepest, child->depth);
  };
  for (const auto& child : node->args) look_at(child);
  for (const auto& [name, child] : node->named) look_at(child);
  look_at(node->star_args);
  look_at(node->star_named);
  node->depth = deepest + 1;
  if (node->depth > kMaxTreeDepth) error("an expression is nested too deeply or too long");
  return node;
}

ExprPtr Parser::binary(ExprKind kind, ExprPtr left, ExprPtr right) {
  auto node = make(kind, left->line);
  node->args.push_back(std::move(left));
  node->args.push_back(std::move(right));
  return finish(std::move(node));
}

ExprPtr Parser::parse_tuple(bool with_conditional, bool explicit_parentheses) {
  auto tuple = make(ExprKind::tuple, current().line);
  bool is_tuple = false;
  const auto at_end = [&] {
    return current().kind == TokenKind::variable_end || current().kind == TokenKind::block_end || is_op(")") ||
           (!with_conditional && is_name("recursive"));
  };
  for (;;) {
    if (!tuple->args.empty()) expect_op(",");
    if (at_end()) break;
    tuple->args.push_back(parse_expression(with_conditional));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!tuple->args.empty()) return std::move(tuple->args[0]);
    if (!explicit_parentheses) error(fmt::format("expected an expression, got {}", describe()));
  }
  return finish(std::move(tuple));
}

ExprPtr Parser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  ExprPtr value = parse_or();
  if (!with_conditional) return value;
  while (is_name("if")) {
    auto node = make(ExprKind::conditional, next().line);
    node->args.push_back(parse_or());
    node->args.push_back(std::move(value));
    node->args.push_back(skip_name("else") ? parse_expression() : nullptr);
    value = finish(std::move(node));
  }
  return value;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (skip_name("or")) left = binary(ExprKind::or_, std::move(left), parse_and());
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (skip_name("and")) left = binary(ExprKind::and_, std::move(left), parse_not());
  return left;
}

ExprPtr Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  auto node = make(ExprKind::not_, next().line);
  node->args.push_back(parse_not());
  return finish(std::move(node));
}

ExprPtr Parser::parse_compare() {
  auto node = make(ExprKind::compare, current().line);
  node->args.push_back(parse_sum());
  for (;;) {
    CompareOp op;
    if (is_op("==")) {
      op = CompareOp::eq;
    } else if (is_op("!=")) {
      op = CompareOp::ne;
    } else if (is_op("<")) {
      op = CompareOp::lt;
    } else if (is_op("<=")) {
      op = CompareOp::le;
    } else if (is_op(">")) {
      op = CompareOp::gt;
    } else if (is_op(">=")) {
      op = CompareOp::ge;
    } else if (is_name("in")) {
      op = CompareOp::in;
    } else if (is_name("not") && look().kind == TokenKind::name && look().value == "in") {
      op = CompareOp::not_in;
      next();
    } else {
      break;
    }
    next();
    node->operators.push_back(op);
    node->args.push_back(parse_sum());
  }
  return node->operators.empty() ? std::move(node->args[0]) : finish(std::move(node));
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (is_op("+") || is_op("-")) {
    const ExprKind kind = next().value == "+" ? ExprKind::add : ExprKind::subtract;
    left = binary(kind, std::move(left), parse_concat());
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  auto node = make(ExprKind::concat, current().line);
  node->args.push_back(parse_product());
  while (skip_op("~")) node->args.push_back(parse_product());
  return node->args.size() == 1 ? std::move(node->args[0]) : finish(std::move(node));
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  for (;;) {
    ExprKind kind;
    if (is_op("*")) {
      kind = ExprKind::multiply;
    } else if (is_op("/")) {
      kind = ExprKind::divide;
    } else if (is_op("//")) {
      kind = ExprKind::floor_divide;
    } else if (is_op("%")) {
      kind = ExprKind::modulo;
    } else {
      return left;
    }
    next();
    left = binary(kind, std::move(left), parse_power());
  }
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (skip_op("**")) left = binary(ExprKind::power, std::move(left), parse_unary(true));
  return left;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    const Nesting nesting(*this);
    node = make(is_op("-") ? ExprKind::negative : ExprKind::positive, current().line);
    next();
    node->args.push_back(parse_unary(false));
    node = finish(std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr Parser::parse_primary() {
  auto node = make(ExprKind::constant, current().line);
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::name: {
      const std::string name = next().value;
      if (name == "true" || name == "True") {
        node->constant = Value(true);
      } else if (name == "false" || name == "False") {
        node->constant = Value(false);
      } else if (name == "none" || name == "None") {
        node->constant = None{};
      } else {
        node->kind = ExprKind::name;
        node->symbol = intern(name);
        node->text = name;
        if (!macros_.empty()) {
          macros_.back()->uses_varargs |= name == "varargs";
          macros_.back()->uses_kwargs |= name == "kwargs";
          macros_.back()->uses_caller |= name == "caller";
        }
      }
      return node;
    }
    case TokenKind::string: {
      std::string text;
      while (current().kind == TokenKind::string) text += next().value;
      node->constant = Value(Text(std::move(text)));
      return node;
    }
    case TokenKind::integer: {
      std::int64_t value = 0;
      const auto [end, code] = std::from_chars(token.value.data(), token.value.data() + token.value.size(), value);
      if (code != std::errc()) error(fmt::format("the number {} is too large", token.value));
      node->constant = Value(value);
      next();
      return node;
    }
    case TokenKind::floating:
      node->constant = Value(std::strtod(token.value.c_str(), nullptr));
      next();
      return node;
    default: break;
  }
  if (skip_op("(")) {
    ExprPtr inner = parse_tuple(true, true);
    expect_op(")");
    return inner;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  error(fmt::format("unexpected {}", describe()));
}

ExprPtr Parser::parse_list() {
  auto node = make(ExprKind::list, current().line);
  expect_op("[");
  while (!is_op("]")) {
    if (!node->args.empty()) expect_op(",");
    if (is_op("]")) break;
    node->args.push_back(parse_expression());
  }
  expect_op("]");
  return finish(std::move(node));
}

ExprPtr Parser::parse_dict() {
  auto node = make(ExprKind::dict, current().line);
  expect_op("{");
  while (!is_op("}")) {
    if (!node->args.empty()) expect_op(",");
    if (is_op("}")) break;
    node->args.push_back(parse_expression());
    expect_op(":");
    node->args.push_back(parse_expression());
  }
  expect_op("}");
  return finish(std::move(node));
}

ExprPtr Parser::parse_postfix(ExprPtr node) {
  for (;;) {
    if (is_op(".") || is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_filters_and_tests(ExprPtr node) {
  for (;;) {
    if (is_op("|")) {
      node = parse_filter(std::move(node));
    } else if (is_name("is")) {
      node = parse_test(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

/// `| name(...) | name ...` applied to `input`; with a null input, the first bar may be missing (a filter block).
ExprPtr Parser::parse_filter(ExprPtr input) {
  bool first = input == nullptr;
  while (is_op("|") || first) {
    skip_op("|");
    first = false;
    auto node = make(ExprKind::filter, current().line);
    node->text = expect_any_name();
    while (skip_op(".")) node->text.append(1, '.').append(expect_any_name());
    node->filter = find_filter(node->text);
    node->args.push_back(std::move(input));
    if (is_op("(")) parse_call_arguments(*node);
    input = finish(std::move(node));
  }
  return input;
}

ExprPtr Parser::parse_test(ExprPtr input) {
  auto node = make(ExprKind::test, next().line);
  const bool negated = skip_name("not");
  node->text = expect_any_name();
  while (skip_op(".")) node->text.append(1, '.').append(expect_any_name());
  node->test = find_test(node->text);
  node->args.push_back(std::move(input));
  if (is_op("(")) {
    parse_call_arguments(*node);
  } else if (const TokenKind kind = current().kind;
             (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and")) ||
             kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::floating || is_op("[") || is_op("{")) {
    if (is_name("is")) error("tests cannot be chained with 'is'");
    node->args.push_back(parse_postfix(parse_primary()));
  }
  ExprPtr test = finish(std::move(node));
  if (!negated) return test;
  auto negation = make(ExprKind::not_, test->line);
  negation->args.push_back(std::move(test));
  return finish(std::move(negation));
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const int line = current().line;
  if (skip_op(".")) {
    if (current().kind == TokenKind::integer) {
      auto index = parse_primary();
      return binary(ExprKind::item, std::move(object), std::move(index));
    }
    auto node = make(ExprKind::attribute, line);
    node->text = expect_any_name();
    node->args.push_back(std::move(object));
    return finish(std::move(node));
  }
  expect_op("[");
  ExprPtr start;
  if (!is_op(":")) {
    start = parse_expression();
    if (is_op(",")) {  // a tuple as index
      auto tuple = make(ExprKind::tuple, line);
      tuple->args.push_back(std::move(start));
      while (skip_op(",")) tuple->args.push_back(parse_expression());
      start = finish(std::move(tuple));
    }
    if (skip_op("]")) return binary(ExprKind::item, std::move(object), std::move(start));
  }
  auto node = make(ExprKind::slice_item, line);
  node->args.push_back(std::move(object));
  node->args.push_back(std::move(start));
  expect_op(":");
  node->args.push_back(is_op(":") || is_op("]") ? nullptr : parse_expression());
  node->args.push_back(skip_op(":") && !is_op("]") ? parse_expression() : nullptr);
  expect_op("]");
  return finish(std::move(node));
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  auto node = make(ExprKind::call, current().line);
  node->args.push_back(std::move(callee));
  parse_call_arguments(*node);
  return finish(std::move(node));
}

void Parser::parse_call_arguments(Expr& node) {
  expect_op("(");
  bool first = true;
  const auto ensure = [&](bool ok) {
    if (!ok) error("the arguments of a call are in the wrong order");
  };
  while (!is_op(")")) {
    if (!first) {
      expect_op(",");
      if (is_op(")")) break;
    }
    first = false;
    if (skip_op("*")) {
      ensure(!node.star_args && !node.star_named);
      node.star_args = parse_expression();
    } else if (skip_op("**")) {
      ensure(!node.star_named);
      node.star_named = parse_expression();
    } else if (current().kind == TokenKind::name && look().kind == TokenKind::op && look().value == "=") {
      ensure(!node.star_named);
      std::string name = next().value;
      next();
      node.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!node.star_args && !node.star_named && node.named.empty());
      node.args.push_back(parse_expression());
    }
  }
  expect_op(")");
}

}  // namespace heirloom::text::jinja
