// The functions every template sees.
#include <algorithm>
#include <ctime>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // the reference's sandbox has the same limit

Value range(Interpreter& in, Arguments& arguments) {
  std::vector<std::int64_t> given;
  for (const Value& value : arguments.positional) {
    const auto i = value.as_int();
    if (!i) template_fail("'{}' object cannot be interpreted as an integer", value.type_name());
    given.push_back(*i);
  }
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) template_fail("range() takes 1 to 3 positional arguments");
  const std::int64_t start = given.size() > 1 ? given[0] : 0;
  const std::int64_t stop = given.size() > 1 ? given[1] : given[0];
  const std::int64_t step = given.size() > 2 ? std::max(given[2], -INT64_MAX) : 1;
  if (step == 0) template_fail("range() arg 3 must not be zero");
  // unsigned differences cannot overflow
  const auto distance = step > 0 ? static_cast<std::uint64_t>(stop) - static_cast<std::uint64_t>(start)
                                 : static_cast<std::uint64_t>(start) - static_cast<std::uint64_t>(stop);
  const bool empty = step > 0 ? stop <= start : stop >= start;
  const std::uint64_t count = empty ? 0 : (distance - 1) / static_cast<std::uint64_t>(step > 0 ? step : -step) + 1;
  if (count > static_cast<std::uint64_t>(kMaxRange)) template_fail("range too big: the limit is {} elements", kMaxRange);
  std::vector<Value> items;
  for (std::uint64_t k = 0; k < count; ++k) items.emplace_back(start + static_cast<std::int64_t>(k) * step);
  return in.make_list(std::move(items));
}

Value make_dict(Interpreter& in, Arguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  for (const Value& value : arguments.positional) {
    if (value.is_dict()) {
      in.budget.make_items(value.dict().entries.size());
      entries.insert(entries.end(), value.dict().entries.begin(), value.dict().entries.end());
      continue;
    }
    for (const Value& pair : in.iterate(value)) {
      std::vector<Value> parts = in.iterate(pair);
      if (parts.size() != 2) template_fail("dict() needs pairs, got {} elements", parts.size());
      entries.emplace_back(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(Value(Text(name)), value);
  return in.make_dict(std::move(entries));
}

struct Cycler final : Object, std::enable_shared_from_this<Cycler> {
  std::vector<Value> items;
  std::size_t at = 0;
  std::string_view type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Interpreter&, std::string_view name) override {
    if (name == "current") return items[at];
    if (name != "next" && name != "reset") return std::nullopt;
    // weak: the items may hold this very method
    return Value(ObjectPtr(std::make_shared<Builtin>(std::string(name), [self = weak_from_this(), next = name == "next"](Interpreter&, Arguments&) {
      const auto cycler = self.lock();
      if (!cycler) template_fail("the cycler of this method is gone");
      const Value value = cycler->items[cycler->at];
      cycler->at = next ? (cycler->at + 1) % cycler->items.size() : 0;
      return next ? value : Value(None{});
    })));
  }
};

struct Joiner final : Object {
  Text separator;
  bool used = false;
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Interpreter&, Arguments&) override {
    if (used) return Value(separator);
    used = true;
    return Value(Text());
  }
};

Value cycler(Interpreter& in, Arguments& arguments) {
  if (arguments.positional.empty()) template_fail("at least one item has to be provided");
  in.budget.make_items(arguments.positional.size());
  auto object = std::make_shared<Cycler>();
  object->items = arguments.positional;
  return Value(ObjectPtr(object));
}

Value joiner(Interpreter& in, Arguments& arguments) {
  const Bound bound("joiner", arguments, {"sep"});
  auto object = std::make_shared<Joiner>();
  object->separator = bound[0] ? in.text(*bound[0]) : Text(", ");
  return Value(ObjectPtr(object));
}

Value raise_exception(Interpreter& in, Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"});
  template_fail("the chat template refuses the messages: {}", in.text(bound.required(0)).str());
}

Value strftime_now(Interpreter& in, Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"});
  const std::string format = in.text(bound.required(0)).str();
  if (format.size() > 1024) template_fail("the format of strftime_now is too long");
  std::tm local{};
  localtime_r(&in.now, &local);
  char buffer[16384];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const std::size_t size = format.empty() ? 0 : std::strftime(buffer, sizeof buffer, format.c_str(), &local);
#pragma GCC diagnostic pop
  const std::string text(buffer, size);
  return Value(Text(is_valid_utf8(text) ? text : replace_invalid_utf8(text)));
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions() {
  std::vector<std::pair<std::string, Value>> out;
  const auto add = [&](const char* name, Builtin::Body body) {
    out.emplace_back(name, Value(ObjectPtr(std::make_shared<Builtin>(name, std::move(body)))));
  };
  add("range", range);
  add("dict", make_dict);
  add("namespace", [](Interpreter& in, Arguments& arguments) { return in.make_namespace(arguments); });
  add("cycler", cycler);
  add("joiner", joiner);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  return out;
}

}  // namespace heirloom::text::jinja
