// How much each routed expert matters on a set of calibration prompts: REAP's score (arXiv 2510.13999) and how often it was
// chosen. The model runs layer by layer (model/layer_stream.h), so it need not fit in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "heirloom/engine.h"
#include "model/model_files.h"
#include "ops/backend.h"

namespace heirloom::tools {

/// One layer's experts.
struct LayerSaliency {
  std::vector<double> score;         // mean over the tokens routed to it of router weight * |output|_2; 0 if there are none
  std::vector<std::int64_t> tokens;  // routed to it
};

struct Calibration {
  std::vector<LayerSaliency> layers;
  std::int64_t sequences = 0, tokens = 0, pictures = 0;
  std::vector<std::string> notes;  // for stderr: what was cut or left out
};

/// Conversations are rendered with the chat template, ends included; plain text (Request::raw_text) is cut into pieces of
/// kPieceTokens. Router weights are the renormalised ones that multiply the outputs.
/// Error{usage} for a dense model or an empty set, Error{bad_file} for a broken prompt, picture or weight.
inline constexpr std::int64_t kPieceTokens = 1024;
inline constexpr std::int64_t kMostSequenceTokens = 4096;  // longer conversations are cut there
Calibration calibrate(const model::ModelFiles& files, ops::Backend& backend, const std::vector<Request>& prompts,
                      const std::function<void(double fraction, std::string_view what)>& progress);

}  // namespace heirloom::tools
