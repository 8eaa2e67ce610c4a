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
};

/// One tensor of a dump. A float stage is ok when max_abs <= tolerance * max(0.1, max_ref) and rel_l2 <= tolerance; integers
/// must be identical (max_abs = largest difference). `note` says why a stage could not be produced.
struct StageResult {
  std::string dump, name;
  double max_abs = 0, max_ref = 0, rel_l2 = 0;
  std::optional<double> kl;  // logits only: mean over rows of KL(reference's next-token distribution || ours), nats
  bool ok = false;
  std::string note;
};

struct VerifyReport {
  std::vector<StageResult> stages;
  std::vector<std::string> passed_over;  // dumps that are not checked (mtp_*), with the reason
  bool ok() const;
  /// The stage with the largest relative deviation, failed ones first; null if there are none.
  const StageResult* worst(double tolerance) const;
};

/// Error{bad_file} for a missing or broken dump, Error{usage} for a dump that does not belong to the model.
VerifyReport verify(const model::ModelFiles& files, model::Model& model, const VerifyOptions& options);

}  // namespace heirloom::tools
