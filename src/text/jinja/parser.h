// Recursive-descent parser of the template language: the token stream and what expressions and statements share. The
// grammar follows jinja2's parser.py, including where it is odd (the test after `is` takes one primary).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace heirloom::text::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Template parse();

 private:
  // parser.cc: statements
  Body parse_body(std::initializer_list<std::string_view> ends);
  Body parse_until(std::initializer_list<std::string_view> ends);
  void parse_statement(Body& body);
  Statement parse_for();
  Statement parse_if();
  Statement parse_set();
  Statement parse_with();
  void parse_signature(Macro& macro);
  void parse_macro_body(Macro& macro, std::string_view end);
  Statement parse_macro();
  Statement parse_call_block();
  Statement parse_filter_block();
  Target parse_target(bool with_attribute);
  Target parse_single_target(bool with_attribute);
  void require_loop(std::string_view what) const;

  // expression_parser.cc
  ExprPtr parse_tuple(bool with_conditional, bool explicit_parentheses);
  ExprPtr parse_expression(bool with_conditional = true);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filters_and_tests(ExprPtr node);
  ExprPtr parse_filter(ExprPtr input);
  ExprPtr parse_test(ExprPtr input);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_call(ExprPtr callee);
  void parse_call_arguments(Expr& node);
  ExprPtr make(ExprKind kind, int line) const;
  ExprPtr binary(ExprKind kind, ExprPtr left, ExprPtr right);
  ExprPtr finish(ExprPtr node) const;  // computes and checks the depth

  // the stream
  const Token& current() const { return tokens_[at_]; }
  const Token& look(std::size_t ahead = 1) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token next();
  bool is_op(std::string_view op) const { return current().kind == TokenKind::op && current().value == op; }
  bool is_name(std::string_view name) const { return current().kind == TokenKind::name && current().value == name; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_any_name();
  void expect(TokenKind kind, std::string_view what);
  [[noreturn]] void error(const std::string& message) const;
  std::string describe() const;
  Symbol intern(const std::string& name);

  // Bounds the recursion of the parser itself (nested parentheses, blocks).
  struct Nesting {
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    Parser& parser;
  };

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;                // {% for %} bodies around the current statement
  std::vector<Macro*> macros_;   // being parsed; the innermost learns that it uses varargs, kwargs or caller
  std::unordered_map<std::string, Symbol> symbols_;
  std::vector<std::string> names_;
};

}  // namespace heirloom::text::jinja
