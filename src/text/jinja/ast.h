// The parsed template. Nodes own their children; the parser bounds the depth of every tree, so that evaluation and
// destruction recurse safely.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/filters.h"
#include "text/jinja/value.h"

namespace heirloom::text::jinja {

using Symbol = std::uint32_t;  // index into Template::names

enum class ExprKind : std::uint8_t {
  constant,
  name,
  list,
  tuple,
  dict,         // args: key, value, key, value, ...
  attribute,    // args: object
  item,         // args: object, index
  slice_item,   // args: object, start, stop, step (each may be null)
  call,         // args: callee, positional...
  filter,       // args: input (null in a filter block), positional...
  test,         // args: input, positional...
  negative,
  positive,
  not_,
  and_,
  or_,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concat,       // args: any number
  compare,      // args: left, right, right, ...; operators beside
  conditional,  // args: condition, then, else (may be null)
};

enum class CompareOp : std::uint8_t { eq, ne, lt, le, gt, ge, in, not_in };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;
  Symbol symbol = 0;               // name
  std::string text;                // attribute, filter and test names; name
  Value constant;
  FilterFunction filter = nullptr;  // null: unknown, an error when it is evaluated
  TestFunction test = nullptr;
  std::vector<ExprPtr> args;
  std::vector<CompareOp> operators;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star_args, star_named;   // *args, **kwargs
};

/// Where a value is assigned: a name, ns.attribute, or a tuple of targets.
struct Target {
  Symbol symbol = 0;
  std::string name;
  std::string attribute;        // of a namespace, if not empty
  std::vector<Target> parts;    // a tuple, if not empty
};

enum class StatementKind : std::uint8_t {
  data,
  output,
  if_,          // expressions: conditions; bodies: one each, and one more for else
  for_,         // expressions: iterable, filter (may be null); bodies: loop, else
  set,          // expressions: value
  set_block,    // bodies: the text; expressions: filters applied to it (may be empty)
  macro,
  call_block,   // expressions: the call; macro: the caller
  filter_block, // expressions: the filters; bodies: the text
  with,         // targets and expressions in pairs; bodies: inside
  scope,        // bodies: rendered in a scope of its own ({% generation %})
  break_,
  continue_,
};

struct Statement;
using Body = std::vector<Statement>;

struct Macro {
  std::string name;
  Symbol symbol = 0;
  std::vector<std::pair<std::string, Symbol>> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  Symbol varargs = 0, kwargs = 0, caller = 0;
  Body body;
};

struct Statement {
  Statement(StatementKind k, int l) : kind(k), line(l) {}

  StatementKind kind;
  int line;
  TextPtr data;
  std::vector<ExprPtr> expressions;
  std::vector<Target> targets;
  std::vector<Body> bodies;
  bool recursive = false;  // {% for ... recursive %}
  std::unique_ptr<Macro> macro;
};

struct Template {
  Body body;
  std::vector<std::string> names;  // of symbols
};

inline constexpr int kMaxTreeDepth = 200;

/// Parses a template. Throws Error{bad_file} naming the line.
Template parse_template(std::string_view source);

}  // namespace heirloom::text::jinja
