// A cursor over the bytes of one file for little-endian formats. Every read is checked against what is left;
// an Error names file, offset and field. Nothing is copied or allocated here.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace heirloom {

static_assert(std::endian::native == std::endian::little,
              "the file formats are read in place on little-endian CPUs");

class ByteReader {
 public:
  /// `file` names the file in messages.
  ByteReader(std::span<const std::byte> bytes, std::string file) : bytes_(bytes), file_(std::move(file)) {}

  std::uint64_t offset() const { return offset_; }
  std::uint64_t remaining() const { return bytes_.size() - offset_; }
  const std::string& file() const { return file_; }
  std::span<const std::byte> all() const { return bytes_; }

  template <typename T>
  T read(std::string_view field) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, read_bytes(sizeof(T), field).data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> read_bytes(std::uint64_t count, std::string_view field) {
    if (count > remaining()) {
      fail_here(field, "needs {} bytes, but the file ends {} bytes further on", count, remaining());
    }
    const auto part = bytes_.subspan(offset_, count);
    offset_ += count;
    return part;
  }

  /// A string with a u64 byte count before it, of at most `limit` bytes; points into the mapping.
  std::string_view read_string(std::string_view field, std::uint64_t limit) {
    const std::uint64_t start = offset_;
    const auto length = read<std::uint64_t>(field);
    if (length > remaining()) {
      offset_ = start;
      fail_here(field, "string length {} is too large, {} bytes are left in the file", length,
                remaining() - 8);
    }
    if (length > limit) {
      offset_ = start;
      fail_here(field, "string length {} is above the limit of {} bytes", length, limit);
    }
    const auto text = read_bytes(length, field);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  /// Throws Error{bad_file} "FILE: offset N: FIELD: ...".
  template <typename... Args>
  [[noreturn]] void fail_here(std::string_view field, fmt::format_string<Args...> format,
                              Args&&... args) const {
    fail_at(offset_, field, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  [[noreturn]] void fail_at(std::uint64_t offset, std::string_view field, fmt::format_string<Args...> format,
                            Args&&... args) const {
    fail(ErrorKind::bad_file, "{}: offset {}: {}: {}", file_, offset, field,
         fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  std::uint64_t offset_ = 0;
};

}  // namespace heirloom
