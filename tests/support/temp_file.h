// A file of given bytes, or a folder, in the system's temporary folder, removed with the object.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace heirloom::test {

class TempFile {
 public:
  /// The name ends in `name`; nothing is written when `bytes` is omitted.
  explicit TempFile(const std::string& name) : path_(unique(name)) {}
  TempFile(const std::string& name, std::string_view bytes) : path_(unique(name)) {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  ~TempFile() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  static std::filesystem::path unique(const std::string& name) {
    static std::atomic<int> counter{0};
    return std::filesystem::temp_directory_path() /
           ("heirloom_test_" + std::to_string(::getpid()) + "_" + std::to_string(counter++) + "_" + name);
  }
  std::filesystem::path path_;
};

/// An empty folder.
class TempFolder {
 public:
  TempFolder() : place_("folder") { std::filesystem::create_directory(path()); }
  const std::filesystem::path& path() const { return place_.path(); }

 private:
  TempFile place_;
};

}  // namespace heirloom::test
