// Little byte strings of broken and valid files, written as HANDED-style recipes: u32(3) + gguf_string("a") +
// ...
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace heirloom::test {

template <typename T>
std::string packed(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}
inline std::string u32(std::uint32_t value) {
  return packed(value);
}
inline std::string u64(std::uint64_t value) {
  return packed(value);
}

inline std::string gguf_string(std::string_view text) {
  return u64(text.size()) + std::string(text);
}

/// Magic, version and the two counts.
inline std::string gguf_header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
  return std::string("GGUF") + u32(version) + u64(tensors) + u64(keys);
}
inline std::string gguf_key(std::string_view key, std::uint32_t type, std::string_view value) {
  return gguf_string(key) + u32(type) + std::string(value);
}
/// Table entry; `dims` innermost first, as the file has them.
inline std::string gguf_tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                               std::uint32_t type, std::uint64_t offset) {
  std::string out = gguf_string(name) + u32(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t dim : dims) out += u64(dim);
  return out + u32(type) + u64(offset);
}
/// Zeros up to the next multiple of `alignment`.
inline std::string pad_to(std::string bytes, std::size_t alignment) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
  return bytes;
}

inline std::string safetensors_bytes(std::string_view header, std::size_t data_bytes = 0) {
  return u64(header.size()) + std::string(header) + std::string(data_bytes, '\0');
}

}  // namespace heirloom::test
