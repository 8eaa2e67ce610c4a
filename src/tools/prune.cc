#include "tools/prune.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/check.h"
#include "tools/prune_folder.h"
#include "tools/quantize.h"
#include "tools/saliency.h"

namespace heirloom::tools {
namespace {

const char* method_name(PruneMethod method) {
  switch (method) {
    case PruneMethod::reap: return "reap";
    case PruneMethod::frequency: return "frequency";
    case PruneMethod::random: return "random";
  }
  return "";
}

/// Uniform scores from a generator whose sequence the standard fixes (distributions are not).
std::vector<std::vector<double>> random_scores(int layers, int experts, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<std::vector<double>> scores(static_cast<std::size_t>(layers), std::vector<double>(static_cast<std::size_t>(experts)));
  for (auto& layer : scores) {
    for (double& score : layer) score = static_cast<double>(generator() >> 11);
  }
  return scores;
}

template <typename T>
double kept_share(const std::vector<T>& values, const std::vector<std::int64_t>& kept) {
  const double all = static_cast<double>(std::accumulate(values.begin(), values.end(), T{}));
  double part = 0;
  for (const std::int64_t expert : kept) part += static_cast<double>(values[static_cast<std::size_t>(expert)]);
  return all > 0 ? part / all : 1.0;
}

}  // namespace

int experts_kept(const model::ModelFiles& files, double keep) {
  const model::TextConfig& text = files.config.text;
  if (text.num_experts == 0) {
    fail(ErrorKind::usage, "{} is a dense model ({}): it has no experts to prune; expected a mixture-of-experts model (qwen3_5_moe)",
         files.path.string(), model::family_name(files.config.family));
  }
  if (!(keep > 0 && keep <= 1)) {
    fail(ErrorKind::usage, "--keep {}: expected the share of experts that stay, above 0 and up to 1", keep);
  }
  const int count = static_cast<int>(std::lround(keep * text.num_experts));
  if (count < text.num_experts_per_token) {
    fail(ErrorKind::usage, "--keep {} leaves {} of {} experts, but the router picks {} for each token; use --keep {} or more", keep,
         count, text.num_experts, text.num_experts_per_token,
         std::ceil(1e4 * text.num_experts_per_token / text.num_experts) / 1e4);
  }
  return count;
}

model::ExpertSelection best_experts(const std::vector<std::vector<double>>& scores, int count) {
  model::ExpertSelection selection;
  for (const std::vector<double>& layer : scores) {
    std::vector<std::int64_t> order(layer.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return layer[static_cast<std::size_t>(a)] > layer[static_cast<std::size_t>(b)];
    });
    order.resize(static_cast<std::size_t>(count));
    std::sort(order.begin(), order.end());
    selection.push_back(std::move(order));
  }
  return selection;
}

PruneReport prune(const model::ModelFiles& files, ops::Backend& backend, const std::filesystem::path& output,
                  const PruneOptions& options) {
  const model::TextConfig& text = files.config.text;
  PruneReport report;
  report.experts = text.num_experts;
  report.kept = experts_kept(files, options.keep);
  const bool folder = output.extension() != ".gguf";
  if (folder) check_folder_output(output, options);

  Calibration calibration;
  std::vector<std::vector<double>> scores;
  if (options.method == PruneMethod::random) {
    scores = random_scores(text.num_layers, text.num_experts, options.seed);
  } else {
    calibration = calibrate(files, backend, options.calibration, options.progress);
    for (const LayerSaliency& layer : calibration.layers) {
      scores.push_back(options.method == PruneMethod::reap ? layer.score
                                                           : std::vector<double>(layer.tokens.begin(), layer.tokens.end()));
    }
  }
  const model::ExpertSelection kept = best_experts(scores, report.kept);
  report.sequences = calibration.sequences;
  report.tokens = calibration.tokens;
  report.pictures = calibration.pictures;
  report.notes = calibration.notes;
  for (std::size_t l = 0; l < kept.size(); ++l) {
    PrunedLayer& layer = report.layers.emplace_back();
    layer.layer = static_cast<int>(l);
    layer.kept = kept[l];
    if (calibration.layers.empty()) continue;
    layer.saliency_share = kept_share(calibration.layers[l].score, kept[l]);
    layer.token_share = kept_share(calibration.layers[l].tokens, kept[l]);
  }

  if (folder) {
    report.output_bytes = write_pruned_folder(files, output, kept, options.threads, options.progress);
    return report;
  }
  QuantizeOptions writing;
  writing.type = options.type;
  writing.kept_experts = kept;
  writing.text_only = options.text_only || (files.vision_gguf && files.vision_gguf != files.gguf);  // an mmproj stays as it is
  writing.vision_output = options.vision_output;
  writing.threads = options.threads;
  writing.progress = options.progress;
  writing.provenance["heirloom.prune"] =
      fmt::format("{} of {} experts by {}{}", report.kept, report.experts, method_name(options.method),
                  options.method == PruneMethod::random
                      ? fmt::format(", seed {}", options.seed)
                      : fmt::format(", {} ({} tokens)", options.calibration_name, report.tokens));
  QuantizeReport written = quantize(files, output, writing);
  report.output_bytes = written.output_bytes;
  report.notes.insert(report.notes.end(), written.notes.begin(), written.notes.end());
  return report;
}

}  // namespace heirloom::tools
