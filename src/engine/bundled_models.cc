#include "engine/bundled_models.h"

#include <algorithm>

#include "base/check.h"

namespace heirloom {
namespace {

namespace fs = std::filesystem;

/// Folders that may hold bundled models, nearest first: every models/ above the executable (a build folder lies inside the
/// source tree), then the installed prefix.
std::vector<fs::path> model_folders() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> folders;
  if (error) return folders;
  for (fs::path folder = executable.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    folders.push_back(folder / "models");
  }
  folders.push_back(executable.parent_path().parent_path() / "share" / "heirloom" / "models");
  return folders;
}

}  // namespace

std::vector<std::string> bundled_model_names() { return {"demo-vl", "demo-moe"}; }

fs::path find_bundled_file(const std::string& file) {
  std::string tried;
  for (const fs::path& folder : model_folders()) {
    const fs::path candidate = folder / file;
    std::error_code error;
    if (fs::exists(candidate, error)) return candidate;
    tried += (tried.empty() ? "" : ", ") + folder.string();
  }
  fail(ErrorKind::bad_file, "{}: this part of the program is not installed; looked in {}", file, tried);
}

fs::path find_model(const std::string& model) {
  const std::vector<std::string> names = bundled_model_names();
  if (std::find(names.begin(), names.end(), model) == names.end()) return model;
  return find_bundled_file(model + ".gguf");
}

}  // namespace heirloom
