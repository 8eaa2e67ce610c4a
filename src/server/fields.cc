#include "server/fields.h"

#include <cmath>
#include <mutex>

#include "base/log.h"
#include "base/printable.h"

namespace heirloom::server {

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    if (path_.empty()) throw ApiError(400, "the request body must be a JSON object, found " + describe(object));
    bad_field(path_, "must be an object, found {}", describe(object));
  }
}

std::string Fields::at(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

const Json* Fields::find(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& Fields::require(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) bad_field(at(name), "is required");
  return *value;
}

std::optional<double> Fields::number(const char* name, double low, double high) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) bad_field(at(name), "must be a number from {} to {}, found {}", low, high, describe(*value));
  const double result = value->get<double>();
  if (!(result >= low && result <= high)) bad_field(at(name), "must be from {} to {}, found {}", low, high, describe(*value));
  return result;
}

std::optional<std::int64_t> Fields::integer(const char* name, std::int64_t low, std::int64_t high) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  bool good = value->is_number_integer();
  std::int64_t result = 0;
  if (value->is_number_unsigned()) {
    const auto wide = value->get<std::uint64_t>();
    good = wide <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    result = static_cast<std::int64_t>(wide);
  } else if (value->is_number_integer()) {
    result = value->get<std::int64_t>();
  } else if (value->is_number_float()) {
    // JSON has one number type: 5.0 is the integer 5.
    const double real = value->get<double>();
    good = std::floor(real) == real && std::fabs(real) < 9e15;
    if (good) result = static_cast<std::int64_t>(real);
  }
  if (!good) bad_field(at(name), "must be an integer, found {}", describe(*value));
  if (result < low || result > high) {
    if (high == std::numeric_limits<std::int64_t>::max()) bad_field(at(name), "must be at least {}, found {}", low, result);
    bad_field(at(name), "must be from {} to {}, found {}", low, high, result);
  }
  return result;
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) bad_field(at(name), "must be true or false, found {}", describe(*value));
  return value->get<bool>();
}

std::optional<std::string> Fields::string(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) bad_field(at(name), "must be a string, found {}", describe(*value));
  return value->get<std::string>();
}

const Json* Fields::array(const char* name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) bad_field(at(name), "must be an array, found {}", describe(*value));
  return value;
}

const Json* Fields::object(const char* name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) bad_field(at(name), "must be an object, found {}", describe(*value));
  return value;
}

std::optional<std::string> Fields::choice(const char* name, std::string_view allowed) {
  auto value = string(name);
  if (!value) return value;
  for (std::size_t start = 0; start < allowed.size();) {
    auto end = allowed.find(' ', start);
    if (end == std::string_view::npos) end = allowed.size();
    if (allowed.substr(start, end - start) == *value) return value;
    start = end + 1;
  }
  bad_field(at(name), "must be one of: {}; found \"{}\"", allowed, printable(*value, 40));
}

void Fields::ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> result;
  for (const auto& [key, value] : object_.items()) {
    if (!known_.contains(key)) result.push_back(key);
  }
  return result;
}

std::string describe(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_string()) return '"' + printable(value.get_ref<const std::string&>(), 40) + '"';
  return value.dump();
}

void log_unknown_fields(std::string_view endpoint, const Fields& fields) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  constexpr std::size_t kMost = 1000;  // a client that makes up names cannot fill the memory or the log
  for (const std::string& name : fields.unknown()) {
    const std::string key = fmt::format("{} {}", endpoint, printable(name, 60));
    const std::lock_guard lock(mutex);
    if (seen.size() < kMost && seen.insert(key).second) {
      log::warning("{}: field \"{}\" is not known here and is ignored (said once)", endpoint, printable(name, 60));
    }
  }
}

}  // namespace heirloom::server
