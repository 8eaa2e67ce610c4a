// A file mapped read-only into memory. Parsers read it through ByteView, which refuses every access past the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"

namespace heirloom {

/// Read-only private mapping of a whole regular file. Throws Error{bad_file} when it cannot be opened or mapped
/// (missing, a folder, no permission). An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  /// Tells the kernel that [offset, offset + length) is not needed any more (drops it from this process' RSS).
  void release(std::uint64_t offset, std::uint64_t length) const noexcept;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Whole small file as a string (configs, templates). Throws Error{bad_file} if missing or larger than `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit_bytes = 256ull << 20);

}  // namespace heirloom
