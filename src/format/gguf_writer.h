// Writes GGUF version 3 files that llama.cpp and the `gguf` Python package read: alignment 32, tensors in
// declared order.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "format/gguf_metadata.h"
#include "format/tensor_writer.h"

namespace heirloom {

/// The value type a C++ type is stored as.
template <typename T>
constexpr GgufType gguf_type_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return GgufType::u8;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return GgufType::i8;
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return GgufType::u16;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return GgufType::i16;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return GgufType::u32;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return GgufType::i32;
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return GgufType::u64;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return GgufType::i64;
  else if constexpr (std::is_same_v<T, float>)
    return GgufType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return GgufType::f64;
  else if constexpr (std::is_same_v<T, bool>)
    return GgufType::boolean;
  else
    return GgufType::array;  // no scalar
}
template <typename T>
concept GgufScalar = gguf_type_of<T>()
!= GgufType::array;

class GgufWriter : public TensorWriter {
 public:
  explicit GgufWriter(std::filesystem::path path) : TensorWriter(std::move(path), kAlignment) {}

  /// Metadata, before begin(). The stored type is exactly T. A key set again keeps its place and takes the
  /// new value.
  template <GgufScalar T>
  void set(std::string_view key, T value) {
    store(key, gguf_type_of<T>(), bytes_of(&value, 1));
  }
  void set(std::string_view key, std::string_view value);
  template <GgufScalar T>
  void set_array(std::string_view key, std::span<const T> values) {
    store_array(key, gguf_type_of<T>(), values.size(), bytes_of(values.data(), values.size()));
  }
  void set_array(std::string_view key, std::span<const std::string_view> values);
  void set_array(std::string_view key, std::span<const std::string> values);
  void set_array(std::string_view key, const std::vector<bool>& values);
  /// The value as another file has it (views into that file are copied). general.alignment is left out: it is
  /// ours.
  void copy(const GgufEntry& entry);
  /// Drops a key that was set or copied.
  void erase(std::string_view key);
  bool has(std::string_view key) const { return index_.contains(key); }

 protected:
  void check(const TensorSpec& spec) const override;
  void arrange(std::vector<TensorSpec>&) const override {}
  std::string header(const std::vector<TensorSpec>& specs,
                     const std::vector<std::uint64_t>& offsets) const override;

 private:
  static constexpr std::uint64_t kAlignment = 32;  // the format's default

  struct Pair {
    std::string key;
    std::string value;  // type number and value, as stored
  };

  template <typename T>
  static std::string bytes_of(const T* values, std::size_t count) {
    return {reinterpret_cast<const char*>(values), count * sizeof(T)};
  }
  void store(std::string_view key, GgufType type, const std::string& payload);
  void store_array(std::string_view key, GgufType element, std::uint64_t count, const std::string& payload);

  std::vector<Pair> pairs_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace heirloom
