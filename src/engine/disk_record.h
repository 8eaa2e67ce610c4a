// One file of the disk tier as bytes: a checked header, a table of regions, and the regions' data, each with its own
// checksum and compressed where that helps. Knows nothing about states or folders. docs/state.md gives the layout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace heirloom::engine {

using Key128 = std::array<std::uint8_t, 16>;

/// XXH3-128 of `bytes`, chained after `before`.
Key128 chain_key(const Key128& before, std::span<const std::byte> bytes);
std::string hex(const Key128& key);

struct RecordRegion {
  std::uint32_t id = 0;
  std::span<const std::byte> bytes;
};

/// Writes `path` by way of a temporary file in the same folder and a rename, so that the name never shows half a file.
/// Returns the file's size. Throws std::system_error.
std::uint64_t write_record(const std::filesystem::path& path, const Key128& model, const Key128& prefix,
                           std::span<const RecordRegion> regions);

/// Reads a record's regions one by one; every count is checked against the file before anything is allocated.
class RecordReader {
 public:
  /// Reads and checks header and table. Throws Error{bad_file} saying whether the file is damaged or of another
  /// model, plan or version.
  RecordReader(const std::filesystem::path& path, const Key128& model);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  const Key128& prefix() const { return prefix_; }
  std::uint64_t file_bytes() const { return file_bytes_; }
  bool has(std::uint32_t id) const;
  /// Size of a region's data before compression; 0 if absent.
  std::uint64_t size_of(std::uint32_t id) const;
  /// The region's data. `expected_bytes` guards the allocation: a region of another size is an Error{bad_file}.
  std::vector<std::byte> read(std::uint32_t id, std::uint64_t expected_bytes) const;

 private:
  struct Region {
    std::uint32_t id, codec;
    std::uint64_t raw_bytes, stored_bytes, checksum, offset;
  };
  const Region* find(std::uint32_t id) const;
  void read_at(std::uint64_t offset, void* to, std::uint64_t bytes) const;

  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t file_bytes_ = 0;
  Key128 prefix_{};
  std::vector<Region> regions_;
};

}  // namespace heirloom::engine
