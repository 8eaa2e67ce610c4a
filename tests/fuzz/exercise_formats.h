// What the fuzzers of GGUF and safetensors do with a file: open it, ask for everything in it, decode some of
// it. Any Error is a good answer; crashes, sanitizer reports and broken invariants are not. The corpus test
// does the same in every build.
#pragma once

#include <filesystem>
#include <vector>

#include "base/check.h"
#include "format/gguf.h"
#include "format/quant_blocks.h"
#include "format/safetensors.h"

namespace heirloom::test {

// Checks the invariants that TensorView promises, reads every byte, decodes the first and the last row.
inline void exercise_tensors(const TensorSource& source) {
  constexpr std::uint64_t kMaxCols = 1 << 16;
  for (const std::string& name : source.names()) {
    const TensorView* tensor = nullptr;
    try {
      tensor = source.find(name);
    } catch (const Error&) {
      continue;  // an unsupported type
    }
    HEIRLOOM_CHECK(tensor != nullptr && tensor->name == name);
    HEIRLOOM_CHECK(tensor->elements() == tensor->rows() * tensor->cols());
    HEIRLOOM_CHECK(tensor->data.size() == tensor->rows() * row_bytes(tensor->type, tensor->cols()));
    volatile unsigned sum = 0;
    for (const std::byte value : tensor->data) sum = sum + std::to_integer<unsigned>(value);
    if (can_dequantize(tensor->type) && tensor->elements() > 0 && tensor->cols() <= kMaxCols) {
      const std::uint64_t bytes = row_bytes(tensor->type, tensor->cols());
      std::vector<float> row(tensor->cols());
      dequantize_row(tensor->type, tensor->data.data(), row.data(), row.size());
      dequantize_row(tensor->type, tensor->data.last(bytes).data(), row.data(), row.size());
    }
    source.release(*tensor);
  }
}

template <typename Read>
void ignore_error(const Read& read) {
  try {
    read();
  } catch (const Error&) {
  }
}

inline void exercise_gguf(const std::filesystem::path& path) {
  ignore_error([&] {
    const GgufFile file(path);
    const GgufMetadata& keys = file.metadata();
    for (const GgufEntry& entry : keys.entries()) {
      HEIRLOOM_CHECK(keys.find(entry.key) != nullptr);
      ignore_error([&] { keys.get_u64(entry.key); });
      ignore_error([&] { keys.get_count(entry.key); });
      ignore_error([&] { keys.get_f32(entry.key); });
      ignore_error([&] { keys.get_bool(entry.key); });
      ignore_error([&] { keys.get_string(entry.key); });
      ignore_error([&] { keys.get_i64s(entry.key); });
      ignore_error([&] { keys.get_f32s(entry.key); });
      ignore_error([&] { keys.get_bools(entry.key); });
      ignore_error([&] {
        const auto strings = keys.get_strings(entry.key);
        HEIRLOOM_CHECK(strings.size() == entry.count);
      });
    }
    exercise_tensors(file);
  });
}

inline void exercise_safetensors(const std::filesystem::path& path) {
  ignore_error([&] {
    const SafetensorsFile file(path);
    exercise_tensors(file);
  });
}

}  // namespace heirloom::test
