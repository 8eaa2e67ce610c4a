// Writes a model as GGUF in another weight type, a few rows at a time. The input is any model we read, a quantised one too.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/model_files.h"

namespace heirloom::tools {

struct QuantizeOptions {
  DType type = DType::q8_0;
  std::optional<DType> head_type;    // logit matrix; default: q6_k beside 4-bit types, else `type`
  std::optional<DType> vision_type;  // tower's GEMMs; default f16 (f32 and bf16 models keep `type`)
  bool text_only = false;            // leaves the vision part out
  std::filesystem::path vision_output;  // writes the vision part there (an mmproj file) instead of into the one file
  int threads = 0;
  std::function<void(double fraction, std::string_view what)> progress;
};

struct QuantizeReport {
  std::uint64_t output_bytes = 0;
  std::vector<std::string> notes;  // for stderr: fallbacks of rows that a block does not divide, a quantised input, ...
};

/// Error{usage} for a type that cannot be written, Error{bad_file} for a broken input. Nothing appears at `output` unless
/// the whole file is written.
QuantizeReport quantize(const model::ModelFiles& files, const std::filesystem::path& output,
                        const QuantizeOptions& options);

}  // namespace heirloom::tools
