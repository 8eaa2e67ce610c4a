#include "support/golden.h"

namespace heirloom::test {

std::filesystem::path golden(const std::string& relative) {
  const std::filesystem::path root = HEIRLOOM_SOURCE_DIR;
  for (const auto& path : {root / "tests" / "golden" / relative, root / ".." / "shared" / "golden" / relative}) {
    if (std::filesystem::exists(path)) return path.lexically_normal();
  }
  return {};
}

std::filesystem::path shared(const std::string& relative) {
  const auto path = std::filesystem::path(HEIRLOOM_SOURCE_DIR) / ".." / "shared" / relative;
  return std::filesystem::exists(path) ? path.lexically_normal() : std::filesystem::path{};
}

}  // namespace heirloom::test
