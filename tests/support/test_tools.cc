#include "support/test_tools.h"

#include <cstdlib>

namespace heirloom::test {
namespace {

std::filesystem::path folder_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

}  // namespace

std::filesystem::path test_tool(const std::filesystem::path& relative) {
  std::filesystem::path deps = folder_of("HEIRLOOM_DEPS_DIR");
  if (deps.empty()) {
    const auto cache = folder_of("XDG_CACHE_HOME");
    deps = (cache.empty() ? folder_of("HOME") / ".cache" : cache) / "heirloom";
  }
  const auto path = deps / relative;
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

}  // namespace heirloom::test
