// Removes routed experts from a mixture-of-experts model: chooses them by layer and writes the smaller model. Kept experts'
// bytes are copied as they are; nothing is held in memory but one tensor's rows (see saliency.h for the calibration).
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "heirloom/engine.h"
#include "model/model_files.h"
#include "model/tensor_export.h"
#include "ops/backend.h"

namespace heirloom::tools {

enum class PruneMethod {
  reap,       // lowest saliency goes first
  frequency,  // least often chosen goes first
  random,     // by seed, without calibration: what the others are measured against
};

struct PruneOptions {
  double keep = 0.5;  // share of the experts of each layer, (0, 1], rounded to whole experts
  PruneMethod method = PruneMethod::reap;
  std::uint64_t seed = 0;             // random only
  std::vector<Request> calibration;   // messages (answers included) or raw_text
  std::string calibration_name;       // for the record in the file
  std::optional<DType> type;          // nullopt: every tensor keeps its type. GGUF output only
  bool text_only = false;             // GGUF output: as in QuantizeOptions
  std::filesystem::path vision_output;
  int threads = 0;
  std::function<void(double fraction, std::string_view what)> progress;  // may throw to stop
};

struct PrunedLayer {
  int layer = 0;
  std::vector<std::int64_t> kept;        // ascending, indices in the source
  std::optional<double> saliency_share;  // of the sum of all experts' scores; absent without calibration
  std::optional<double> token_share;     // of the calibration's routed tokens
};

struct PruneReport {
  int experts = 0, kept = 0;
  std::int64_t sequences = 0, tokens = 0, pictures = 0;  // of the calibration
  std::vector<PrunedLayer> layers;
  std::uint64_t output_bytes = 0;
  std::vector<std::string> notes;  // for stderr
};

/// Writes to `output`: a name ending in .gguf makes a GGUF file; any other name a Hugging Face folder (of a GGUF
/// source: gguf_folder.h). Nothing appears under the name unless all of it is written.
/// Error{usage} for a dense model, a share outside (0, 1] or one that leaves fewer experts than the router picks.
PruneReport prune(const model::ModelFiles& files, ops::Backend& backend, const std::filesystem::path& output,
                  const PruneOptions& options);

/// Number of experts that `keep` leaves. Errors as above.
int experts_kept(const model::ModelFiles& files, double keep);

/// The `count` best experts of every layer, ties to the lower index.
model::ExpertSelection best_experts(const std::vector<std::vector<double>>& scores, int count);

}  // namespace heirloom::tools
