#include "format/gguf_writer.h"

#include "base/check.h"
#include "base/printable.h"

namespace heirloom {
namespace {

constexpr std::size_t kMaxNameBytes =
    63;                              // ggml's GGML_MAX_NAME less its end mark; llama.cpp refuses longer names
constexpr std::size_t kMaxDims = 4;  // ggml's GGML_MAX_DIMS

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_string(std::string& out, std::string_view text) {
  append<std::uint64_t>(out, text.size());
  out.append(text);
}

template <typename Strings>
std::string string_payload(const Strings& values) {
  std::string out;
  for (const auto& value : values) append_string(out, value);
  return out;
}

}  // namespace

void GgufWriter::set(std::string_view key, std::string_view value) {
  std::string payload;
  append_string(payload, value);
  store(key, GgufType::string, payload);
}

void GgufWriter::set_array(std::string_view key, std::span<const std::string_view> values) {
  store_array(key, GgufType::string, values.size(), string_payload(values));
}

void GgufWriter::set_array(std::string_view key, std::span<const std::string> values) {
  store_array(key, GgufType::string, values.size(), string_payload(values));
}

void GgufWriter::set_array(std::string_view key, const std::vector<bool>& values) {
  std::string payload;
  for (const bool value : values) payload += value ? '\1' : '\0';
  store_array(key, GgufType::boolean, values.size(), payload);
}

void GgufWriter::copy(const GgufEntry& entry) {
  if (entry.key == "general.alignment" || entry.key.starts_with("split.")) return;
  const std::string payload(reinterpret_cast<const char*>(entry.payload.data()), entry.payload.size());
  if (entry.type == GgufType::array) {
    store_array(entry.key, entry.element, entry.count, payload);
  } else {
    store(entry.key, entry.type, payload);
  }
}

void GgufWriter::erase(std::string_view key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(found->second));
  index_.clear();
  for (std::size_t i = 0; i < pairs_.size(); ++i) index_.emplace(pairs_[i].key, i);
}

void GgufWriter::store(std::string_view key, GgufType type, const std::string& payload) {
  std::string value;
  append(value, static_cast<std::uint32_t>(type));
  value += payload;
  const auto [found, is_new] = index_.emplace(key, pairs_.size());
  if (is_new) {
    pairs_.push_back({std::string(key), std::move(value)});
  } else {
    pairs_[found->second].value = std::move(value);
  }
}

void GgufWriter::store_array(std::string_view key, GgufType element, std::uint64_t count,
                             const std::string& payload) {
  std::string value;
  append(value, static_cast<std::uint32_t>(element));
  append(value, count);
  store(key, GgufType::array, value + payload);
}

void GgufWriter::check(const TensorSpec& spec) const {
  const std::string name = printable(spec.name);
  if (spec.name.size() > kMaxNameBytes) {
    fail(ErrorKind::usage, "tensor \"{}\": the name has {} bytes, a GGUF allows {}", name, spec.name.size(),
         kMaxNameBytes);
  }
  if (spec.shape.size() > kMaxDims) {
    fail(ErrorKind::usage, "tensor \"{}\": {} dimensions, a GGUF allows {}", name, spec.shape.size(),
         kMaxDims);
  }
  for (const std::uint64_t dim : spec.shape) {
    if (dim == 0) fail(ErrorKind::usage, "tensor \"{}\": a GGUF cannot hold an empty dimension", name);
  }
  if (ggml_type_of(spec.type) == nullptr) {
    fail(ErrorKind::usage, "tensor \"{}\": a GGUF has no tensor type for {}", name, dtype_name(spec.type));
  }
}

std::string GgufWriter::header(const std::vector<TensorSpec>& specs,
                               const std::vector<std::uint64_t>& offsets) const {
  std::string out("GGUF");
  append<std::uint32_t>(out, 3);
  append<std::uint64_t>(out, specs.size());
  append<std::uint64_t>(out, pairs_.size());
  for (const Pair& pair : pairs_) {
    append_string(out, pair.key);
    out += pair.value;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    append_string(out, specs[i].name);
    append(out, static_cast<std::uint32_t>(specs[i].shape.size()));
    for (auto dim = specs[i].shape.rbegin(); dim != specs[i].shape.rend(); ++dim) append(out, *dim);
    append(out, ggml_type_of(specs[i].type)->number);
    append(out, offsets[i]);
  }
  out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment, '\0');
  return out;
}

}  // namespace heirloom
