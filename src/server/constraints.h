// Constrained decoding: JSON schemas, grammars and tool-call formats compiled (by xgrammar) for this model's vocabulary into
// TokenConstraints. What cannot be honoured exactly is refused with the path of the keyword, never weakened silently.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "heirloom/engine.h"
#include "server/template_traits.h"

namespace heirloom::server {

struct ConstraintSpec {
  enum class Kind { json_object, json_schema, grammar, regex, choice, tool_calls };
  Kind kind = Kind::json_object;
  Json schema;             // json_schema
  std::string text;        // grammar (EBNF, GBNF), regex
  std::vector<std::string> choices;
  Json tools;              // tool_calls: the tools that may be called, in the chat form
  bool must_call = true;   // tool_calls: at least one; else free text with calls that hold to their schemas
  bool one_call = false;
  CallStyle style = CallStyle::xml;
  std::string path;        // of the field that asked for it, for messages
  bool after_reasoning = false;  // reasoning comes first and is free
};

class ConstraintCompiler {
 public:
  explicit ConstraintCompiler(const Engine& engine);
  ~ConstraintCompiler();

  using Maker = std::function<std::shared_ptr<TokenConstraint>()>;
  /// Compiles (or finds in a bounded cache) and returns what makes one constraint per choice. Throws ApiError(400). Slow at
  /// times (a large schema takes seconds): not for I/O threads. Thread-safe.
  Maker compile(const ConstraintSpec& spec);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace heirloom::server
