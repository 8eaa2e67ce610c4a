// A file that appears whole or not at all: written beside its final name and renamed on commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace heirloom {

/// Writes `PATH.partial-PID`; commit() makes it PATH, replacing what was there. Without commit the partial
/// file is removed by the destructor and PATH stays as it was. Throws Error{usage} when the file cannot be
/// created, Error{does_not_fit} on a full disk or quota, Error{bad_file} on any other write failure.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Flushes to the disk and renames. Nothing may be written afterwards.
  void commit();

  std::uint64_t bytes_written() const { return bytes_written_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void flush();
  void write_all(std::span<const std::byte> bytes);
  [[noreturn]] void fail_with_errno(const char* what) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  int fd_ = -1;
  std::uint64_t bytes_written_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace heirloom
