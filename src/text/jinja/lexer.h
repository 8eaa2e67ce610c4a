// Template source to tokens, with trim_blocks and lstrip_blocks on, as the reference renders chat templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heirloom::text::jinja {

enum class TokenKind {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  floating,
  op,
  end,
};

struct Token {
  TokenKind kind;
  std::string value;  // data, name, string (unescaped), digits, operator
  int line;
};

/// Tokens of a template, closed by one `end`. Throws Error{bad_file} with the line for anything the language has not.
std::vector<Token> tokenize(std::string_view source);

}  // namespace heirloom::text::jinja
