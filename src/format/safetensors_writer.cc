#include "format/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/check.h"
#include "base/printable.h"

namespace heirloom {
namespace {

std::string_view dtype_spelling(DType type) {
  switch (type) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::f64:
      return "F64";
    case DType::i8:
      return "I8";
    case DType::i16:
      return "I16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
    default:
      return {};
  }
}

// JSON string. Throws Error{usage} for what is not UTF-8.
std::string quote(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    fail(ErrorKind::usage, "\"{}\" is not valid UTF-8, which a safetensors header needs", printable(text));
  }
}

}  // namespace

void SafetensorsWriter::check(const TensorSpec& spec) const {
  if (dtype_spelling(spec.type).empty()) {
    fail(ErrorKind::usage, "tensor \"{}\": safetensors cannot hold {}; write a GGUF or dequantise it",
         printable(spec.name), dtype_name(spec.type));
  }
  if (spec.name == "__metadata__") fail(ErrorKind::usage, "tensor name \"__metadata__\" is reserved");
  quote(spec.name);
}

void SafetensorsWriter::arrange(std::vector<TensorSpec>& specs) const {
  std::ranges::stable_sort(specs, std::greater{},
                           [](const TensorSpec& spec) { return dtype_info(spec.type).block_bytes; });
}

std::string SafetensorsWriter::header(const std::vector<TensorSpec>& specs,
                                      const std::vector<std::uint64_t>& offsets) const {
  // Written entry by entry: an ordered document of many keys searches linearly.
  std::string json = "{";
  if (!metadata_.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata_) {
      json += fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", quote(key), quote(value));
    }
    json += "}";
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    const DTypeInfo& info = dtype_info(spec.type);
    const std::uint64_t bytes = checked_tensor_bytes(info.block_size, info.block_bytes, spec.shape).value();
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", quote(spec.name), dtype_spelling(spec.type),
                        nlohmann::json(spec.shape).dump(), offsets[i], offsets[i] + bytes);
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');  // the data starts at a multiple of 8
  const std::uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + json;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer(path, metadata);
  std::unordered_map<std::string, const TensorView*> by_name;
  for (const TensorView& tensor : tensors) {
    writer.add_tensor({tensor.name, tensor.type, tensor.shape});
    by_name.emplace(tensor.name, &tensor);
  }
  for (const TensorSpec& spec : writer.begin()) writer.write(by_name.at(spec.name)->data);
  writer.finish();
}

}  // namespace heirloom
