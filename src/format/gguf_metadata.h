// The key-value part of a GGUF file: an index of typed values that stay in the mapping, and access that
// checks the type. Keys, counts and lengths were checked against the file when it was opened; values are
// converted when asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/byte_reader.h"
#include "format/gguf_types.h"

namespace heirloom {

/// One key with its value as it lies in the file.
struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::u32;
  GgufType element = GgufType::u32;  // of an array; else equal to `type`
  std::uint64_t count = 1;           // elements of an array; else 1
  std::span<const std::byte>
      payload;  // the value's bytes; strings (also inside arrays) with their u64 length before them
  std::uint64_t offset = 0;  // of the payload in the file

  /// "uint32", "array of float32".
  std::string type_name() const;
};

/// `get_X(key)` throws Error{bad_file} naming file and key when the key is missing; `find_X(key)` returns
/// nullopt instead. Both throw when the value's type does not fit X, naming key, offset, found and expected
/// type. Views point into the file.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  /// Reads `count` key-value pairs at `reader`. Throws Error{bad_file} on any broken, duplicate or unknown
  /// entry.
  GgufMetadata(ByteReader& reader, std::uint64_t count);

  const std::vector<GgufEntry>& entries() const { return entries_; }  // in file order
  const GgufEntry* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  /// Any integer type, not negative.
  std::uint64_t get_u64(std::string_view key) const;
  std::optional<std::uint64_t> find_u64(std::string_view key) const;
  /// As get_u64, and within [0, 2^31 - 1]: a count or a size that the model code keeps in an int.
  int get_count(std::string_view key) const;
  std::optional<int> find_count(std::string_view key) const;
  /// float32 or float64 (rounded).
  float get_f32(std::string_view key) const;
  std::optional<float> find_f32(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::string_view get_string(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;

  /// Arrays. Integers of any width for i64s; float32 or float64 for f32s.
  std::vector<std::string_view> get_strings(std::string_view key) const;
  std::optional<std::vector<std::string_view>> find_strings(std::string_view key) const;
  std::vector<std::int64_t> get_i64s(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> find_i64s(std::string_view key) const;
  std::vector<float> get_f32s(std::string_view key) const;
  std::optional<std::vector<float>> find_f32s(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;

 private:
  const GgufEntry& require(std::string_view key) const;
  [[noreturn]] void refuse_type(const GgufEntry& entry, std::string_view expected) const;
  const GgufEntry& expect_array(const GgufEntry& entry, std::string_view expected, bool element_fits) const;

  std::uint64_t as_u64(const GgufEntry& entry) const;
  int as_count(const GgufEntry& entry) const;
  float as_f32(const GgufEntry& entry) const;
  bool as_bool(const GgufEntry& entry) const;
  std::string_view as_string(const GgufEntry& entry) const;
  std::vector<std::string_view> as_strings(const GgufEntry& entry) const;
  std::vector<std::int64_t> as_i64s(const GgufEntry& entry) const;
  std::vector<float> as_f32s(const GgufEntry& entry) const;
  std::vector<bool> as_bools(const GgufEntry& entry) const;

  std::string file_;
  std::vector<GgufEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

}  // namespace heirloom
