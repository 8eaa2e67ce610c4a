#include "text/jinja/parser.h"

#include <algorithm>

#include "base/check.h"

namespace heirloom::text::jinja {

Template parse_template(std::string_view source) { return Parser(tokenize(source)).parse(); }

Template Parser::parse() {
  Template out;
  out.body = parse_body({});
  out.names = std::move(names_);
  return out;
}

Parser::Nesting::Nesting(Parser& p) : parser(p) {
  if (++parser.nesting_ > kMaxTreeDepth) parser.error("the template is nested too deeply");
}

Token Parser::next() {
  Token token = current();
  if (token.kind != TokenKind::end) ++at_;
  return token;
}

bool Parser::skip_op(std::string_view op) { return is_op(op) ? (next(), true) : false; }
bool Parser::skip_name(std::string_view name) { return is_name(name) ? (next(), true) : false; }

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) error(fmt::format("expected '{}', got {}", op, describe()));
}
void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) error(fmt::format("expected '{}', got {}", name, describe()));
}
std::string Parser::expect_any_name() {
  if (current().kind != TokenKind::name) error(fmt::format("expected a name, got {}", describe()));
  return next().value;
}
void Parser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) error(fmt::format("expected {}, got {}", what, describe()));
  next();
}

void Parser::error(const std::string& message) const {
  fail(ErrorKind::bad_file, "chat template line {}: {}", current().line, message);
}

std::string Parser::describe() const {
  switch (current().kind) {
    case TokenKind::end: return "the end of the template";
    case TokenKind::data: return "template text";
    case TokenKind::variable_begin:
    case TokenKind::block_begin: return "the start of a tag";
    case TokenKind::variable_end:
    case TokenKind::block_end: return "the end of the tag";
    case TokenKind::string: return "a string";
    default: return fmt::format("'{}'", current().value);
  }
}

Symbol Parser::intern(const std::string& name) {
  const auto [it, added] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
  if (added) names_.push_back(name);
  return it->second;
}

/// Statements up to a block that starts with one of `ends` (its name is then current), or to the end of the template.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Body body;
  for (;;) {
    const int line = current().line;
    switch (current().kind) {
      case TokenKind::end:
        if (ends.size() != 0) error(fmt::format("the template ends before {{% {} %}}", *(ends.end() - 1)));
        return body;
      case TokenKind::data: {
        Statement statement(StatementKind::data, line);
        statement.data = std::make_shared<const Text>(Text(next().value));
        body.push_back(std::move(statement));
        break;
      }
      case TokenKind::variable_begin: {
        next();
        Statement statement(StatementKind::output, line);
        statement.expressions.push_back(parse_tuple(true, false));
        expect(TokenKind::variable_end, "'}}'");
        body.push_back(std::move(statement));
        break;
      }
      default:
        expect(TokenKind::block_begin, "a tag");
        if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return is_name(end); })) return body;
        parse_statement(body);
        expect(TokenKind::block_end, "'%}'");
    }
  }
}

Body Parser::parse_until(std::initializer_list<std::string_view> ends) {
  skip_op(":");
  expect(TokenKind::block_end, "'%}'");
  return parse_body(ends);
}

void Parser::require_loop(std::string_view what) const {
  if (loops_ == 0) error(fmt::format("'{}' outside of a loop", what));
}

void Parser::parse_statement(Body& body) {
  const int line = current().line;
  if (current().kind != TokenKind::name) error(fmt::format("expected a statement, got {}", describe()));
  const std::string& name = current().value;
  if (name == "for") return body.push_back(parse_for());
  if (name == "if") return body.push_back(parse_if());
  if (name == "set") return body.push_back(parse_set());
  if (name == "macro") return body.push_back(parse_macro());
  if (name == "call") return body.push_back(parse_call_block());
  if (name == "filter") return body.push_back(parse_filter_block());
  if (name == "with") return body.push_back(parse_with());
  if (name == "break" || name == "continue") {
    require_loop(name);
    body.emplace_back(name == "break" ? StatementKind::break_ : StatementKind::continue_, line);
    next();
    return;
  }
  if (name == "print") {
    next();
    for (bool first = true; current().kind != TokenKind::block_end; first = false) {
      if (!first) expect_op(",");
      Statement statement(StatementKind::output, line);
      statement.expressions.push_back(parse_expression());
      body.push_back(std::move(statement));
    }
    return;
  }
  if (name == "generation") {  // marks what the assistant wrote, for training; it renders as if it were not there
    next();
    Statement statement(StatementKind::scope, line);
    statement.bodies.push_back(parse_until({"endgeneration"}));
    next();
    return body.push_back(std::move(statement));
  }
  error(fmt::format("unknown statement '{}'", name));
}

Statement Parser::parse_for() {
  Statement statement(StatementKind::for_, current().line);
  expect_name("for");
  statement.targets.push_back(parse_target(false));
  expect_name("in");
  statement.expressions.push_back(parse_tuple(false, false));
  statement.expressions.push_back(skip_name("if") ? parse_expression() : nullptr);
  statement.recursive = skip_name("recursive");
  ++loops_;
  statement.bodies.push_back(parse_until({"else", "endfor"}));
  --loops_;
  if (next().value == "else") {
    statement.bodies.push_back(parse_until({"endfor"}));
    next();
  } else {
    statement.bodies.emplace_back();
  }
  return statement;
}

Statement Parser::parse_if() {
  Statement statement(StatementKind::if_, current().line);
  expect_name("if");
  for (;;) {
    statement.expressions.push_back(parse_tuple(false, false));
    statement.bodies.push_back(parse_until({"elif", "else", "endif"}));
    if (skip_name("elif")) continue;
    if (skip_name("else")) {
      statement.bodies.push_back(parse_until({"endif"}));
    }
    next();
    return statement;
  }
}

Statement Parser::parse_set() {
  Statement statement(StatementKind::set, current().line);
  expect_name("set");
  statement.targets.push_back(parse_target(true));
  if (skip_op("=")) {
    statement.expressions.push_back(parse_tuple(true, false));
    return statement;
  }
  statement.kind = StatementKind::set_block;
  if (is_op("|")) statement.expressions.push_back(parse_filter(nullptr));
  statement.bodies.push_back(parse_until({"endset"}));
  next();
  return statement;
}

Statement Parser::parse_with() {
  Statement statement(StatementKind::with, current().line);
  expect_name("with");
  while (current().kind != TokenKind::block_end) {
    if (!statement.targets.empty()) expect_op(",");
    statement.targets.push_back(parse_target(false));
    expect_op("=");
    statement.expressions.push_back(parse_expression());
  }
  statement.bodies.push_back(parse_until({"endwith"}));
  next();
  return statement;
}

void Parser::parse_signature(Macro& macro) {
  expect_op("(");
  while (!is_op(")")) {
    if (!macro.parameters.empty()) expect_op(",");
    const std::string name = expect_any_name();
    macro.parameters.emplace_back(name, intern(name));
    if (skip_op("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      error("a parameter without a default follows one with a default");
    }
  }
  next();
}

void Parser::parse_macro_body(Macro& macro, std::string_view end) {
  macro.varargs = intern("varargs");
  macro.kwargs = intern("kwargs");
  macro.caller = intern("caller");
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(&macro);
  macro.body = parse_until({end});
  macros_.pop_back();
  loops_ = loops;
  next();
}

Statement Parser::parse_macro() {
  Statement statement(StatementKind::macro, current().line);
  statement.macro = std::make_unique<Macro>();
  expect_name("macro");
  statement.macro->name = expect_any_name();
  statement.macro->symbol = intern(statement.macro->name);
  parse_signature(*statement.macro);
  parse_macro_body(*statement.macro, "endmacro");
  return statement;
}

Statement Parser::parse_call_block() {
  Statement statement(StatementKind::call_block, current().line);
  statement.macro = std::make_unique<Macro>();
  expect_name("call");
  statement.macro->name = "caller";
  if (is_op("(")) parse_signature(*statement.macro);
  statement.expressions.push_back(parse_expression());
  if (statement.expressions.back()->kind != ExprKind::call) error("expected a call");
  parse_macro_body(*statement.macro, "endcall");
  return statement;
}

Statement Parser::parse_filter_block() {
  Statement statement(StatementKind::filter_block, current().line);
  expect_name("filter");
  statement.expressions.push_back(parse_filter(nullptr));
  statement.bodies.push_back(parse_until({"endfilter"}));
  next();
  return statement;
}

Target Parser::parse_single_target(bool with_attribute) {
  const Nesting nesting(*this);
  if (skip_op("(")) {
    Target target = parse_target(with_attribute);
    expect_op(")");
    return target;
  }
  Target target;
  target.name = expect_any_name();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None", "loop"}) {
    if (target.name == constant && constant != "loop") error(fmt::format("cannot assign to '{}'", target.name));
  }
  target.symbol = intern(target.name);
  if (with_attribute && skip_op(".")) target.attribute = expect_any_name();
  return target;
}

Target Parser::parse_target(bool with_attribute) {
  Target first = parse_single_target(with_attribute);
  if (!is_op(",")) return first;
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (skip_op(",")) {
    if (current().kind != TokenKind::name && !is_op("(")) break;
    if (is_name("in")) break;
    tuple.parts.push_back(parse_single_target(with_attribute));
  }
  return tuple;
}

}  // namespace heirloom::text::jinja
