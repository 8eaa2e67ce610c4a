#include "server/constraints.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <list>
#include <thread>

#include "base/printable.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/schema_check.h"
#include "server/tool_schema.h"
#include "server/xgrammar_log.h"

namespace heirloom::server {
namespace {

constexpr std::size_t kMaxGrammarBytes = 64 << 10;
constexpr std::size_t kMaxCached = 64;
constexpr std::size_t kMaxCachedBytes = 256u << 20;
constexpr std::string_view kThinkEnd = "</think>";

/// One answer's position in a compiled grammar.
class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(const xgrammar::CompiledGrammar& grammar, std::vector<std::int32_t> ends, int vocab_size)
      : matcher_(grammar), ends_(std::move(ends)), bits_(static_cast<std::size_t>((vocab_size + 31) / 32)), vocab_size_(vocab_size) {}

  bool mask(std::span<std::uint32_t> allowed) override {
    if (!filled_) fill();
    if (everything_) return false;
    for (std::size_t i = 0; i < allowed.size(); ++i) allowed[i] &= i < bits_.size() ? static_cast<std::uint32_t>(bits_[i]) : 0u;
    return true;
  }

  void accept(std::int32_t token) override {
    if (!dead_ && !matcher_.IsTerminated() && !matcher_.AcceptToken(token)) dead_ = true;
    filled_ = false;
  }

  /// Text that is part of a token whose beginning belongs to the reasoning.
  void accept_text(const std::string& text) {
    if (!matcher_.AcceptString(text)) dead_ = true;
    filled_ = false;
  }

  bool finished() const override {
    if (dead_ || matcher_.IsTerminated()) return true;
    if (!matcher_.IsCompleted()) return false;
    if (!filled_) fill();
    return only_ends_;
  }

  /// Some token other than an end token may come first, or the empty answer is allowed.
  bool can_begin() {
    fill();
    return everything_ || !dead_end_;
  }

 private:
  void fill() const {
    filled_ = true;
    everything_ = only_ends_ = dead_end_ = false;
    if (!dead_ && !matcher_.IsTerminated()) {
      std::int64_t shape[1] = {static_cast<std::int64_t>(bits_.size())};
      DLTensor tensor{};
      tensor.data = bits_.data();
      tensor.device = {kDLCPU, 0};
      tensor.ndim = 1;
      tensor.dtype = xgrammar::GetBitmaskDLType();
      tensor.shape = shape;
      everything_ = !matcher_.FillNextTokenBitmask(&tensor);
      if (everything_) return;
      if (vocab_size_ % 32 != 0) bits_.back() &= static_cast<std::int32_t>((1u << (vocab_size_ % 32)) - 1);
      bool any_end = false;
      std::size_t others = 0;
      for (const std::int32_t word : bits_) others += static_cast<std::size_t>(__builtin_popcount(static_cast<std::uint32_t>(word)));
      for (const std::int32_t end : ends_) {
        if ((bits_[static_cast<std::size_t>(end / 32)] >> (end % 32) & 1) != 0) {
          any_end = true;
          --others;
        }
      }
      only_ends_ = any_end && others == 0;
      dead_end_ = !any_end && others == 0;
      if (!dead_end_) return;
    }
    // Nothing can follow: the answer ends here rather than anywhere.
    std::fill(bits_.begin(), bits_.end(), 0);
    for (const std::int32_t end : ends_) bits_[static_cast<std::size_t>(end / 32)] |= static_cast<std::int32_t>(1u << (end % 32));
    only_ends_ = true;
  }

  mutable xgrammar::GrammarMatcher matcher_;  // filling a mask uses scratch of the matcher
  std::vector<std::int32_t> ends_;
  mutable std::vector<std::int32_t> bits_;
  int vocab_size_;
  bool dead_ = false;
  mutable bool filled_ = false;
  mutable bool everything_ = false, only_ends_ = false, dead_end_ = false;
};

/// Free until the reasoning ends, then constrained.
class AfterReasoning final : public TokenConstraint {
 public:
  AfterReasoning(const Engine& engine, std::shared_ptr<GrammarConstraint> inner) : engine_(engine), inner_(std::move(inner)) {}

  bool mask(std::span<std::uint32_t> allowed) override { return constrained_ && inner_->mask(allowed); }
  void accept(std::int32_t token) override {
    if (constrained_) return inner_->accept(token);
    tail_ += engine_.token_text(token);
    if (const auto at = tail_.find(kThinkEnd); at != std::string::npos) {
      constrained_ = true;
      const std::string rest = tail_.substr(at + kThinkEnd.size());
      if (!rest.empty()) inner_->accept_text(rest);
    } else if (tail_.size() > kThinkEnd.size()) {
      tail_.erase(0, tail_.size() - kThinkEnd.size());
    }
  }
  bool finished() const override { return constrained_ && inner_->finished(); }

 private:
  const Engine& engine_;
  std::shared_ptr<GrammarConstraint> inner_;
  bool constrained_ = false;
  std::string tail_;
};

std::string ebnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

Json constant(std::string text) { return {{"type", "const_string"}, {"value", std::move(text)}}; }

/// One argument of an XML-style call: bare text for strings, JSON for the rest.
Json xml_value_format(const Json& schema, const Json& root, const std::string& path) {
  Json resolved = schema;
  for (int i = 0; i < 16 && resolved.is_object() && resolved.contains("$ref") && resolved["$ref"].is_string(); ++i) {
    const auto target = resolved["$ref"].get<std::string>();
    if (target == "#" || !target.starts_with("#/")) break;
    resolved = root.at(Json::json_pointer(target.substr(1)));
  }
  const JsonTypes types = schema_types(resolved, root);
  if (!types.string && !types.empty()) {
    Json whole = schema;
    for (const char* name : {"$defs", "definitions"}) {
      if (root.contains(name) && whole.is_object()) whole[name] = root.at(name);
    }
    return {{"type", "json_schema"}, {"json_schema", checked_schema(whole, path)}};
  }
  if (types.only_string()) {
    const auto literal = [&](const Json& value) {
      if (!value.is_string()) bad_field(path, "a string parameter lists a value that is no string");
      return constant(value.get<std::string>());
    };
    if (resolved.contains("const")) return literal(resolved.at("const"));
    if (resolved.contains("enum")) {
      Json options = Json::array();
      for (const Json& value : resolved.at("enum")) options.push_back(literal(value));
      return {{"type", "or"}, {"elements", std::move(options)}};
    }
    if (resolved.contains("pattern")) {
      return {{"type", "regex"}, {"pattern", checked_regex(resolved.at("pattern").get<std::string>(), path + ".pattern")}};
    }
    for (const char* name : {"minLength", "maxLength", "format"}) {
      if (resolved.contains(name)) bad_field(path + "." + name, "cannot be enforced for a string argument here; use a pattern");
    }
  }
  // Text, or a union that text is part of: any text is a value of it.
  return {{"type", "any_text"}, {"excludes", Json::array({"</parameter>"})}};
}

Json xml_call_tag(const Json& function, const std::string& path) {
  const Json schema = function.value("parameters", Json::object());
  Json elements = Json::array();
  if (schema.contains("properties")) {
    // Reading the whole schema first refuses what no argument may hold, wherever it stands.
    checked_schema(schema, path);
    const Json required = schema.value("required", Json::array());
    for (const auto& [key, property] : schema.at("properties").items()) {
      Json tag{{"type", "tag"},
               {"begin", "<parameter=" + key + ">\n"},
               {"content", xml_value_format(property, schema, fmt::format("{}.properties.{}", path, printable(key, 60)))},
               {"end", "\n</parameter>\n"}};
      const bool needed = std::find(required.begin(), required.end(), Json(key)) != required.end();
      elements.push_back(needed ? std::move(tag) : Json{{"type", "optional"}, {"content", std::move(tag)}});
    }
  }
  elements.push_back(constant("</function>\n"));
  return {{"type", "tag"},
          {"begin", "<tool_call>\n<function=" + function.at("name").get<std::string>() + ">\n"},
          {"content", {{"type", "sequence"}, {"elements", std::move(elements)}}},
          {"end", "</tool_call>"}};
}

Json json_call_tag(const Json& function, const std::string& path) {
  return {{"type", "tag"},
          {"begin", "<tool_call>\n{\"name\": " + Json(function.at("name")).dump() + ", \"arguments\": "},
          {"content",
           {{"type", "json_schema"}, {"json_schema", checked_schema(function.value("parameters", Json{{"type", "object"}}), path)}}},
          {"end", "}\n</tool_call>"}};
}

std::string structural_tag(const ConstraintSpec& spec) {
  Json tags = Json::array();
  for (std::size_t i = 0; i < spec.tools.size(); ++i) {
    const Json& function = spec.tools[i].at("function");
    const std::string path = fmt::format("{}.{}.parameters", spec.path, function.at("name").get<std::string>());
    tags.push_back(spec.style == CallStyle::xml ? xml_call_tag(function, path) : json_call_tag(function, path));
  }
  Json format;
  if (spec.must_call) {
    format = {{"type", "tags_with_separator"}, {"tags", std::move(tags)}, {"separator", "\n"}, {"at_least_one", true}, {"stop_after_first", spec.one_call}};
  } else {
    format = {{"type", "triggered_tags"}, {"triggers", Json::array({"<tool_call>"})}, {"tags", std::move(tags)}};
  }
  return Json{{"type", "structural_tag"}, {"format", std::move(format)}}.dump();
}

}  // namespace

struct ConstraintCompiler::Impl {
  explicit Impl(const Engine& engine_in) : engine(engine_in) {}

  /// Built at the first use: it sorts the whole vocabulary.
  const xgrammar::TokenizerInfo& vocabulary() {
    std::call_once(vocabulary_once, [&] {
      const int size = engine.vocab_size();
      std::vector<std::string> texts(static_cast<std::size_t>(size));
      for (int id = 0; id < size; ++id) {
        std::string text = engine.token_text(id);
        // Control tokens are no text, whatever their name looks like: without a text they are never allowed.
        if (text.starts_with("<|") && text.ends_with("|>") && text.size() > 4 && engine.tokenize(text, true) == std::vector<std::int32_t>{id} &&
            engine.tokenize(text, false) != std::vector<std::int32_t>{id}) {
          text.clear();
        }
        texts[static_cast<std::size_t>(id)] = std::move(text);
      }
      ends = engine.end_token_ids();
      info.emplace(texts, xgrammar::VocabType::RAW, size, ends);
    });
    return *info;
  }

  xgrammar::Grammar make_grammar(const ConstraintSpec& spec) {
    switch (spec.kind) {
      // One line, ", " and ": " as separators: a model that may write any white space can fill its whole answer with it.
      case ConstraintSpec::Kind::json_object: return xgrammar::Grammar::FromJSONSchema(R"({"type": "object"})", false);
      case ConstraintSpec::Kind::json_schema: return xgrammar::Grammar::FromJSONSchema(checked_schema(spec.schema, spec.path).dump(), false);
      case ConstraintSpec::Kind::grammar:
        if (spec.text.size() > kMaxGrammarBytes) bad_field(spec.path, "the grammar has {} bytes, at most {} are taken", spec.text.size(), kMaxGrammarBytes);
        return xgrammar::Grammar::FromEBNF(spec.text);
      case ConstraintSpec::Kind::regex: return xgrammar::Grammar::FromRegex(checked_regex(spec.text, spec.path));
      case ConstraintSpec::Kind::choice: {
        std::string text = "root ::= ";
        for (std::size_t i = 0; i < spec.choices.size(); ++i) text += (i > 0 ? " | " : "") + ebnf_literal(spec.choices[i]);
        if (text.size() > kMaxGrammarBytes) bad_field(spec.path, "the choices have {} bytes, at most {} are taken", text.size(), kMaxGrammarBytes);
        return xgrammar::Grammar::FromEBNF(text);
      }
      case ConstraintSpec::Kind::tool_calls: {
        auto made = xgrammar::Grammar::FromStructuralTag(structural_tag(spec), vocabulary());
        if (auto* error = std::get_if<xgrammar::StructuralTagError>(&made)) {
          throw std::runtime_error(std::visit([](const auto& one) { return std::string(one.what()); }, *error));
        }
        return std::get<xgrammar::Grammar>(made);
      }
    }
    throw std::logic_error("no such constraint");
  }

  xgrammar::CompiledGrammar build(const ConstraintSpec& spec) {
    const xgrammar::TokenizerInfo& tokens = vocabulary();
    const XgrammarWarnings warnings;
    try {
      xgrammar::Grammar grammar = make_grammar(spec);
      // The template's reasoning ends with blank lines that models write before the answer.
      if (spec.after_reasoning) grammar = xgrammar::Grammar::Concat({xgrammar::Grammar::FromEBNF("root ::= [\\n]{0,4}"), grammar});
      const int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 4u));
      xgrammar::GrammarCompiler compiler(tokens, threads, false);
      xgrammar::CompiledGrammar compiled = compiler.CompileGrammar(grammar);
      if (!warnings.messages().empty()) bad_field(spec.path, "cannot be enforced: {}", printable(warnings.messages()[0], 300));
      if (!GrammarConstraint(compiled, ends, engine.vocab_size()).can_begin()) {
        bad_field(spec.path, "no answer can satisfy it: none of this model's tokens may come first");
      }
      return compiled;
    } catch (const ApiError&) {
      throw;
    } catch (const std::exception& error) {
      bad_field(spec.path, "cannot be enforced: {}", printable(error.what(), 300));
    }
  }

  struct Entry {
    std::string key;
    xgrammar::CompiledGrammar grammar;
    std::size_t bytes;
  };

  const Engine& engine;
  std::once_flag vocabulary_once;
  std::optional<xgrammar::TokenizerInfo> info;
  std::vector<std::int32_t> ends;
  std::mutex mutex;
  std::list<Entry> recent;  // most recently used first
};

ConstraintCompiler::ConstraintCompiler(const Engine& engine) : impl_(std::make_unique<Impl>(engine)) {}
ConstraintCompiler::~ConstraintCompiler() = default;

ConstraintCompiler::Maker ConstraintCompiler::compile(const ConstraintSpec& spec) {
  const std::string key =
      Json::array({static_cast<int>(spec.kind), spec.schema, spec.text, spec.choices, spec.tools, spec.must_call, spec.one_call,
                   static_cast<int>(spec.style), spec.after_reasoning})
          .dump(-1, ' ', false, Json::error_handler_t::replace);
  std::optional<xgrammar::CompiledGrammar> compiled;
  {
    const std::lock_guard lock(impl_->mutex);
    for (auto entry = impl_->recent.begin(); entry != impl_->recent.end(); ++entry) {
      if (entry->key != key) continue;
      compiled = entry->grammar;
      impl_->recent.splice(impl_->recent.begin(), impl_->recent, entry);
      break;
    }
  }
  if (!compiled) {
    compiled = impl_->build(spec);
    const std::size_t bytes = key.size() + compiled->MemorySizeBytes();
    const std::lock_guard lock(impl_->mutex);
    impl_->recent.push_front({key, *compiled, bytes});
    std::size_t total = 0;
    std::size_t kept = 0;
    for (auto entry = impl_->recent.begin(); entry != impl_->recent.end();) {
      total += entry->bytes;
      entry = ++kept > kMaxCached || (kept > 1 && total > kMaxCachedBytes) ? impl_->recent.erase(entry) : std::next(entry);
    }
  }
  return [impl = impl_.get(), grammar = *compiled, free_reasoning = spec.after_reasoning]() -> std::shared_ptr<TokenConstraint> {
    auto constraint = std::make_shared<GrammarConstraint>(grammar, impl->ends, impl->engine.vocab_size());
    if (free_reasoning) return std::make_shared<AfterReasoning>(impl->engine, std::move(constraint));
    return constraint;
  };
}

}  // namespace heirloom::server
