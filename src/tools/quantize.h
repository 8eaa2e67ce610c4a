// Writes a model as GGUF, in another weight type or with fewer experts, a few rows at a time. The input is any model we read,
// a quantised one too.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/model_files.h"
#include "model/tensor_export.h"

namespace heirloom::tools {

struct QuantizeOptions {
  std::optional<DType> type = DType::q8_0;  // nullopt: every tensor keeps the type it has
  std::optional<DType> head_type;    // logit matrix; default: q6_k beside 4-bit types, else `type`
  std::optional<DType> vision_type;  // tower's GEMMs; default f16 (f32 and bf16 models keep `type`)
  bool text_only = false;            // leaves the vision part out
  std::filesystem::path vision_output;  // writes the vision part there (an mmproj file) instead of into the one file
  model::ExpertSelection kept_experts;  // by layer, equally many in each; empty = all
  std::map<std::string, std::string> provenance;  // further keys of the file, heirloom.*
  int threads = 0;
  std::function<void(double fraction, std::string_view what)> progress;
};

struct QuantizeReport {
  std::uint64_t output_bytes = 0;
  std::vector<std::string> notes;  // for stderr: fallbacks of rows that a block does not divide, a quantised input, ...
};

/// The logit matrix' and the vision part's types follow `type` where they are not given.
/// Error{usage} for a type that cannot be written, Error{bad_file} for a broken input. Nothing appears at `output` unless
/// the whole file is written.
QuantizeReport quantize(const model::ModelFiles& files, const std::filesystem::path& output,
                        const QuantizeOptions& options);

}  // namespace heirloom::tools
