// Values of the template language, with Python's meaning of truth, equality, order and printing. Strings, lists and dicts
// are immutable and shared; only a namespace can change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/tainted_text.h"

namespace heirloom::text::jinja {

class Budget;
class Interpreter;
class Value;

struct Undefined {
  std::shared_ptr<const std::string> what;  // for messages: "'x' is undefined"
};
struct None {};

/// Call arguments: positional first, then by name.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Anything with attributes or calls that is not plain data: namespaces, loops, macros, functions, bound methods.
struct Object {
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual std::optional<Value> attribute(Interpreter& in, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value call(Interpreter& in, Arguments& arguments);
};

struct List;
struct Dict;
using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<List>;
using DictPtr = std::shared_ptr<Dict>;
using ObjectPtr = std::shared_ptr<Object>;

class Value {
 public:
  Value() = default;  // undefined
  Value(Undefined u) : v_(std::move(u)) {}
  Value(None n) : v_(n) {}
  explicit Value(bool b) : v_(b) {}
  explicit Value(std::int64_t i) : v_(i) {}
  explicit Value(double d) : v_(d) {}
  explicit Value(TextPtr t) : v_(std::move(t)) {}
  explicit Value(ListPtr l) : v_(std::move(l)) {}
  explicit Value(DictPtr d) : v_(std::move(d)) {}
  explicit Value(ObjectPtr o) : v_(std::move(o)) {}
  explicit Value(Text t) : v_(std::make_shared<const Text>(std::move(t))) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool is_none() const { return std::holds_alternative<None>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(v_); }
  bool is_float() const { return std::holds_alternative<double>(v_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_text() const { return std::holds_alternative<TextPtr>(v_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(v_); }
  bool is_sequence() const;  // a list or a tuple
  bool is_dict() const { return std::holds_alternative<DictPtr>(v_); }
  bool is_object() const { return std::holds_alternative<ObjectPtr>(v_); }

  const Undefined& undefined() const { return std::get<Undefined>(v_); }
  bool boolean() const { return std::get<bool>(v_); }
  const Text& text() const { return *std::get<TextPtr>(v_); }
  const std::string& str() const { return text().str(); }
  List& list() const { return *std::get<ListPtr>(v_); }
  const ListPtr& list_ptr() const { return std::get<ListPtr>(v_); }
  const Dict& dict() const { return *std::get<DictPtr>(v_); }
  const ObjectPtr& object() const { return std::get<ObjectPtr>(v_); }

  /// Integer value of a bool or int; nullopt otherwise.
  std::optional<std::int64_t> as_int() const;
  /// Value of a bool, int or float; is_number() must hold.
  double as_double() const;

  bool truthy() const;
  std::string_view type_name() const;  // Python's

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, TextPtr, ListPtr, DictPtr, ObjectPtr> v_;
};

enum class ListKind : std::uint8_t { list, tuple, view, generator };  // view: dict.items() and the like; prints as a list

struct List {
  std::vector<Value> items;  // a generator loses them when it is iterated
  ListKind kind = ListKind::list;
  int depth = 1;  // nesting of containers below, itself included: bounds recursion over values
};

/// Insertion-ordered mapping. Keys are text, numbers, None or tuples.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // while building only

 private:
  std::unordered_map<std::string, std::size_t> index_;  // text keys
};

inline constexpr int kMaxValueDepth = 256;

/// Whether a value can be the key of a dict.
bool is_hashable(const Value& key);

/// Deep equality and order as Python's == and <; `compare` throws for types without an order.
bool equals(Budget& budget, const Value& a, const Value& b);
int compare(Budget& budget, const Value& a, const Value& b);

/// str(value) and repr(value).
Text to_text(Budget& budget, const Value& value);
Text to_repr(Budget& budget, const Value& value);
std::string float_repr(double value);

}  // namespace heirloom::text::jinja
