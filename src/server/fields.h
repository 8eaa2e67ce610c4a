// Typed access to the fields of a request object, with one error style: path, what was found, what was expected. A field
// that is absent or null counts as not given.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace heirloom::server {

class Fields {
 public:
  /// `object` must outlive this. Throws ApiError if it is not an object. `path` is empty for the request itself.
  Fields(const Json& object, std::string path);

  /// The value if given and not null.
  const Json* find(const char* name);
  const Json& require(const char* name);

  std::optional<double> number(const char* name, double low, double high);
  std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high);
  std::optional<bool> boolean(const char* name);
  std::optional<std::string> string(const char* name);
  const Json* array(const char* name);
  const Json* object(const char* name);
  /// One of `allowed` (space-separated).
  std::optional<std::string> choice(const char* name, std::string_view allowed);
  /// Marks fields as known without reading them.
  void ignore(std::initializer_list<const char*> names);

  /// "messages[2].content" for `name` = "content" in an object at messages[2].
  std::string at(std::string_view name) const;
  const std::string& path() const { return path_; }
  /// Names that were never asked for.
  std::vector<std::string> unknown() const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

/// `value` for an error message: its type, and the value itself if short.
std::string describe(const Json& value);

/// Logs once per process that `endpoint` got a field it does not know.
void log_unknown_fields(std::string_view endpoint, const Fields& fields);

}  // namespace heirloom::server
