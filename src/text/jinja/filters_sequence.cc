// Filters on lists and mappings.
#include <algorithm>

#include "text/jinja/filter_tables.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace heirloom::text::jinja {
namespace {

using In = Interpreter;
using A = Arguments;

Value default_filter(In&, const Value& v, A& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  const bool replace = v.is_undefined() || (bound.truthy(1, false) && !v.truthy());
  return !replace ? v : bound[0] ? *bound[0] : Value(Text());
}

Value length(In& in, const Value& v, A&) {
  if (v.is_text()) {
    in.budget.scan(v.text().size());
    return Value(static_cast<std::int64_t>(count_code_points(v.str())));
  }
  if (v.is_list() && v.list().kind != ListKind::generator) return Value(static_cast<std::int64_t>(v.list().items.size()));
  if (v.is_dict()) return Value(static_cast<std::int64_t>(v.dict().entries.size()));
  if (v.is_undefined()) return Value(std::int64_t{0});
  template_fail("object of type '{}' has no len()", v.type_name());
}

/// "a.b.0": attribute or index by index, as the reference's make_attrgetter; `otherwise` stands for any missing step.
Value attribute_path(In& in, Value value, const Value& path, const Value* otherwise = nullptr) {
  const auto step = [&](const Value& name) {
    value = in.item(value, name);
    if (otherwise && !otherwise->is_none() && value.is_undefined()) value = *otherwise;
  };
  if (path.as_int()) {
    step(path);
    return value;
  }
  if (!path.is_text()) template_fail("an attribute must be a string or an integer, not '{}'", path.type_name());
  for (const Text& part : split(path.text(), ".", -1, false)) {
    const std::string& name = part.str();
    const bool number = !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
    step(number ? Value(static_cast<std::int64_t>(std::stoll(name))) : Value(part));
  }
  return value;
}

Value join(In& in, const Value& v, A& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  const Text separator = bound[0] ? in.text(*bound[0]) : Text();
  Text out;
  bool first = true;
  for (const Value& item : in.iterate(v)) {
    const Text part = in.text(bound[1] && !bound[1]->is_none() ? attribute_path(in, item, *bound[1]) : item);
    in.budget.make_text(out.size() > Budget::kMaxTextBytes ? out.size() : separator.size() + part.size());
    if (!first) out.append(separator);
    first = false;
    out.append(part);
  }
  return Value(std::move(out));
}

Value first(In& in, const Value& v, A&) {
  if (v.is_list() && v.list().kind != ListKind::generator && !v.list().items.empty()) return v.list().items[0];
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? Value(Undefined{std::make_shared<const std::string>("No first item, sequence was empty.")}) : items.front();
}

Value last(In& in, const Value& v, A&) {
  if (v.is_list() && v.list().kind == ListKind::generator) template_fail("'generator' object is not reversible");
  if (v.is_list() && !v.list().items.empty()) return v.list().items.back();
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? Value(Undefined{std::make_shared<const std::string>("No last item, sequence was empty.")}) : items.back();
}

Value list_filter(In& in, const Value& v, A&) { return in.make_list(in.iterate(v)); }

Value items(In& in, const Value& v, A&) {
  if (v.is_undefined()) return in.make_list({}, ListKind::generator);
  if (!v.is_dict()) template_fail("Can only get item pairs from a mapping.");
  Arguments none;
  return in.make_list(in.iterate(*call_method(in, v, "items", none)), ListKind::generator);
}

/// Lower-case text for comparisons that ignore case; other values as they are.
Value fold(In& in, const Value& v) {
  if (!v.is_text()) return v;
  in.budget.make_text(v.text().size() * 4);
  return Value(change_case(v.text(), Case::lower));
}

std::vector<Value> sorted(In& in, std::vector<Value> values, const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // A comparison that throws leaves the order unspecified but valid, and the error passes on.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? compare(in.budget, keys[b], keys[a]) == -1 : compare(in.budget, keys[a], keys[b]) == -1;
  });
  std::vector<Value> out;
  for (const std::size_t i : order) out.push_back(std::move(values[i]));
  return out;
}

Value dictsort(In& in, const Value& v, A& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!v.is_dict()) template_fail("dictsort needs a mapping, not '{}'", v.type_name());
  const std::string by = bound[1] && bound[1]->is_text() ? bound[1]->str() : "key";
  if (by != "key" && by != "value") template_fail("dictsort(): by must be 'key' or 'value'");
  std::vector<Value> pairs;
  std::vector<Value> keys;
  for (const auto& [key, value] : v.dict().entries) {
    pairs.push_back(in.make_list({key, value}, ListKind::tuple));
    const Value& wanted = by == "key" ? key : value;
    keys.push_back(bound.truthy(0, false) ? wanted : fold(in, wanted));
  }
  return in.make_list(sorted(in, std::move(pairs), keys, bound.truthy(2, false)));
}

std::vector<Value> keys_of(In& in, const std::vector<Value>& values, const Value* attribute, bool case_sensitive) {
  std::vector<Value> keys;
  for (const Value& value : values) {
    Value key = value;
    if (attribute && attribute->is_text() && attribute->str().find(',') != std::string::npos) {
      std::vector<Value> parts;  // several attributes order by the first that differs
      for (const Text& part : split(attribute->text(), ",", -1, false)) {
        const Value one = attribute_path(in, value, Value(part));
        parts.push_back(case_sensitive ? one : fold(in, one));
      }
      keys.push_back(in.make_list(std::move(parts)));
      continue;
    }
    if (attribute && !attribute->is_none()) key = attribute_path(in, value, *attribute);
    keys.push_back(case_sensitive ? key : fold(in, key));
  }
  return keys;
}

Value sort(In& in, const Value& v, A& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> values = in.iterate(v);
  const std::vector<Value> keys = keys_of(in, values, bound[2], bound.truthy(1, false));
  return in.make_list(sorted(in, std::move(values), keys, bound.truthy(0, false)));
}

Value unique(In& in, const Value& v, A& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> values = in.iterate(v);
  const std::vector<Value> keys = keys_of(in, values, bound[1], bound.truthy(0, false));
  Dict seen;
  std::vector<Value> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!keys[i].is_text()) in.budget.make_items(seen.entries.size());  // compared one by one
    if (keys[i].is_dict() || (keys[i].is_list() && keys[i].list().kind != ListKind::tuple)) template_fail("unhashable type: '{}'", keys[i].type_name());
    if (seen.find(keys[i])) continue;
    seen.set(keys[i], Value(true));
    out.push_back(values[i]);
  }
  return in.make_list(std::move(out), ListKind::generator);
}

template <int sign>
Value extreme(In& in, const Value& v, A& arguments) {
  const Bound bound("min", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> values = in.iterate(v);
  if (values.empty()) return Undefined{std::make_shared<const std::string>("No aggregated item, sequence was empty.")};
  const std::vector<Value> keys = keys_of(in, values, bound[1], bound.truthy(0, false));
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (compare(in.budget, keys[i], keys[best]) == sign) best = i;
  }
  return values[best];
}

Value sum(In& in, const Value& v, A& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  Value total = bound[1] ? *bound[1] : Value(std::int64_t{0});
  for (const Value& item : in.iterate(v)) {
    total = binary_operator(in, ExprKind::add, total, bound[0] && !bound[0]->is_none() ? attribute_path(in, item, *bound[0]) : item);
  }
  return total;
}

Value reverse(In& in, const Value& v, A&) {
  if (v.is_text()) {
    const Value step(std::int64_t{-1});
    return slice(in, v, nullptr, nullptr, &step);
  }
  std::vector<Value> values = in.iterate(v);
  std::reverse(values.begin(), values.end());
  return in.make_list(std::move(values), ListKind::generator);
}

// map, select and their kin take any false value, None included, as an empty sequence.
Value map(In& in, const Value& v, A& arguments) {
  if (!v.truthy()) return in.make_list({}, ListKind::generator);
  std::vector<Value> values = in.iterate(v);
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const Bound bound("map", arguments, {"attribute", "default"});
    for (const Value& value : values) {
      out.push_back(attribute_path(in, value, bound.required(0), bound[1]));
    }
    return in.make_list(std::move(out), ListKind::generator);
  }
  const std::string name = in.text(arguments.positional[0]).str();
  for (const Value& value : values) {
    in.budget.step();
    Arguments rest;
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
    out.push_back(in.filter(name, value, rest));
  }
  return in.make_list(std::move(out), ListKind::generator);
}

template <bool by_attribute, bool wanted>
Value select(In& in, const Value& v, A& arguments) {
  if (!v.truthy()) return in.make_list({}, ListKind::generator);
  constexpr std::size_t kSkip = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) template_fail("missing parameter for attribute name");
  std::vector<Value> out;
  for (const Value& value : in.iterate(v)) {
    in.budget.step();
    const Value subject = by_attribute ? attribute_path(in, value, arguments.positional[0]) : value;
    bool holds = subject.truthy();
    if (arguments.positional.size() > kSkip) {
      Arguments rest;
      rest.positional.assign(arguments.positional.begin() + kSkip + 1, arguments.positional.end());
      rest.named = arguments.named;
      holds = in.test(in.text(arguments.positional[kSkip]).str(), subject, rest);
    }
    if (holds == wanted) out.push_back(value);
  }
  return in.make_list(std::move(out), ListKind::generator);
}

Value attr(In& in, const Value& v, A& arguments) {
  const Bound bound("attr", arguments, {"name"});
  const std::string name = in.text(bound.required(0)).str();
  // only real attributes, not the keys of a mapping
  if (v.is_object() || has_method(v, name)) return in.attribute(v, name);
  return Undefined{std::make_shared<const std::string>(fmt::format("'{} object' has no attribute '{}'", v.type_name(), name))};
}

Value batch(In& in, const Value& v, A& arguments) {
  const Bound bound("batch", arguments, {"linecount", "fill_with"});
  const std::int64_t size = bound.integer(0, 0);
  std::vector<Value> out;
  std::vector<Value> row;
  for (Value& value : in.iterate(v)) {
    if (static_cast<std::int64_t>(row.size()) == size) out.push_back(in.make_list(std::exchange(row, {})));
    row.push_back(std::move(value));
  }
  if (!row.empty()) {
    if (bound[1] && !bound[1]->is_none() && static_cast<std::int64_t>(row.size()) < size) {
      in.budget.make_items(static_cast<std::size_t>(size));
      row.resize(static_cast<std::size_t>(size), *bound[1]);
    }
    out.push_back(in.make_list(std::move(row)));
  }
  return in.make_list(std::move(out), ListKind::generator);
}

/// [(value, [items with it])], ordered by the value of the attribute.
Value groupby(In& in, const Value& v, A& arguments) {
  const Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"});
  std::vector<Value> values = in.iterate(v);
  std::vector<Value> keys;
  for (const Value& value : values) {
    const Value key = attribute_path(in, value, bound.required(0), bound[1]);
    keys.push_back(bound.truthy(2, false) ? key : fold(in, key));
  }
  std::vector<Value> indexes;
  for (std::size_t i = 0; i < values.size(); ++i) indexes.emplace_back(static_cast<std::int64_t>(i));
  std::vector<Value> out;
  std::vector<Value> group;
  const Value* group_key = nullptr;
  std::size_t group_first = 0;
  const auto close = [&] {
    if (!group_key) return;
    const Value shown = attribute_path(in, values[group_first], bound.required(0), bound[1]);
    out.push_back(in.make_list({shown, in.make_list(std::exchange(group, {}))}, ListKind::tuple));
  };
  for (const Value& index : sorted(in, indexes, keys, false)) {
    const auto i = static_cast<std::size_t>(*index.as_int());
    if (!group_key || !equals(in.budget, *group_key, keys[i])) {
      close();
      group_key = &keys[i];
      group_first = i;
    }
    group.push_back(values[i]);
  }
  close();
  return in.make_list(std::move(out));
}

}  // namespace

const FilterTable& sequence_filters() {
  static const FilterTable table = {
      {"default", default_filter}, {"d", default_filter},   {"length", length},
      {"count", length},           {"join", join},          {"first", first},
      {"last", last},              {"list", list_filter},   {"items", items},
      {"dictsort", dictsort},      {"sort", sort},          {"unique", unique},
      {"min", extreme<-1>},        {"max", extreme<1>},     {"sum", sum},
      {"reverse", reverse},        {"map", map},            {"select", select<false, true>},
      {"reject", select<false, false>}, {"selectattr", select<true, true>}, {"rejectattr", select<true, false>},
      {"attr", attr},              {"batch", batch},        {"groupby", groupby},
  };
  return table;
}

}  // namespace heirloom::text::jinja
