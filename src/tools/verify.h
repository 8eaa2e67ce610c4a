// Compares a bound model, stage by stage, with dumps of the reference implementation (the golden kit's layout: one
// .safetensors file a case, pictures described by the .json beside it).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/model_files.h"

namespace heirloom::tools {

struct VerifyOptions {
  std::filesystem::path reference;  // one dump, or a folder of them
  std::filesystem::path images;     // where pictures lie; empty = images/ two folders above the dump
  double tolerance = 1e-3;
  bool bf16 = false;               // products round their operands to bfloat16: stages are judged by RoundingBounds too
  std::filesystem::path rounding;  // file of those, or folder with NAME.json; empty = rounding/ two folders above the dump, if it is there
};

/// One tensor of a dump. A float stage is ok when max_abs <= tolerance * max(0.1, max_ref) and rel_l2 <= tolerance; integers
/// must be identical (max_abs = largest difference, rel_l2 = share of entries that differ). With VerifyOptions::bf16 a stage is also
/// ok within RoundingBounds::kFactor times what rounding moves the reference. `note` says why a stage could not be produced, or
/// what it was judged by where that is not the tolerance.
struct StageResult {
  std::string dump, name;
  double max_abs = 0, max_ref = 0, rel_l2 = 0;
  double share = 0;          // of the bound: the larger of max_abs and rel_l2, each over what is allowed; above 1 when not ok
  std::optional<double> kl;  // logits only: mean over rows of KL(reference's next-token distribution || ours), nats
  bool ok = false;
  std::string note;
};

struct VerifyReport {
  std::vector<StageResult> stages;
  std::vector<std::string> passed_over;  // dumps that are not checked (mtp_*), with the reason
  bool ok() const;
  /// The stage with the largest share of its bound, failed ones first; null if there are none.
  const StageResult* worst() const;
  std::size_t judged_by_rounding = 0;  // float stages and choices of experts beyond the tolerance, within the bound of rounding
};

/// Error{bad_file} for a missing or broken dump, Error{usage} for a dump that does not belong to the model.
VerifyReport verify(const model::ModelFiles& files, model::Model& model, const VerifyOptions& options);

}  // namespace heirloom::tools
