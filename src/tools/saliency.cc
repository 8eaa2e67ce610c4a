#include "tools/saliency.h"

#include <charconv>
#include <cmath>

#include "base/check.h"
#include "engine/prompt_builder.h"
#include "engine/text_side.h"
#include "model/layer_stream.h"
#include "model/vision_tower.h"

namespace heirloom::tools {
namespace {

using model::StreamedSequence;

/// Adds up the scores of a layer's experts from the taps of its mixture-of-experts part.
class SaliencyTaps : public model::Taps {
 public:
  explicit SaliencyTaps(const model::TextConfig& text) : sums_(static_cast<std::size_t>(text.num_layers)) {
    for (LayerSaliency& layer : sums_) {
      layer.score.assign(static_cast<std::size_t>(text.num_experts), 0.0);
      layer.tokens.assign(static_cast<std::size_t>(text.num_experts), 0);
    }
  }

  bool wants(std::string_view name) const override {
    return name.ends_with(".ffn.topk_indices") || name.ends_with(".ffn.topk_weights") || name.ends_with(".ffn.expert_out_norm");
  }
  void ints(std::string_view, std::span<const std::int64_t>, std::span<const std::int32_t> values) override {
    experts_.assign(values.begin(), values.end());
  }
  // The norms come last (hybrid_decoder.cc).
  void floats(std::string_view name, std::span<const std::int64_t>, std::span<const float> values) override {
    if (name.ends_with(".ffn.topk_weights")) {
      weights_.assign(values.begin(), values.end());
      return;
    }
    HEIRLOOM_CHECK(values.size() == experts_.size() && values.size() == weights_.size());
    LayerSaliency& layer = sums_.at(layer_of(name));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto expert = static_cast<std::size_t>(experts_[i]);
      layer.score[expert] += static_cast<double>(weights_[i]) * values[i];
      ++layer.tokens[expert];
    }
  }

  std::vector<LayerSaliency> finish(const std::string& source) {
    for (std::size_t l = 0; l < sums_.size(); ++l) {
      for (std::size_t e = 0; e < sums_[l].score.size(); ++e) {
        double& score = sums_[l].score[e];
        if (sums_[l].tokens[e] > 0) score /= static_cast<double>(sums_[l].tokens[e]);
        if (!std::isfinite(score)) {
          fail(ErrorKind::bad_file, "{}: layer {}, expert {}: its output is not a finite number; the weights are damaged", source, l, e);
        }
      }
    }
    return std::move(sums_);
  }

 private:
  /// The N of lm.layerN.
  static std::size_t layer_of(std::string_view name) {
    constexpr std::string_view kPrefix = "lm.layer";
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
    HEIRLOOM_CHECK(name.starts_with(kPrefix) && error == std::errc());
    return layer;
  }

  std::vector<LayerSaliency> sums_;
  std::vector<std::int32_t> experts_;
  std::vector<float> weights_;
};

/// A picture's features, on the host.
std::vector<float> encode(model::VisionTower& tower, ops::Backend& backend, const engine::ImageSpan& span, std::size_t width) {
  const model::VisionOutput output = tower.encode(span.unit->make_input(), nullptr);
  HEIRLOOM_CHECK(output.tokens >= span.first_feature + span.count);
  std::vector<float> values(static_cast<std::size_t>(span.count) * width);
  backend.download(values.data(), output.features.f32() + span.first_feature * static_cast<std::int64_t>(width),
                   values.size() * sizeof(float));
  return values;
}

/// Tokens [first, last) of a prompt without pictures, as a sequence of their own.
StreamedSequence piece_of(const engine::Prompt& prompt, std::int64_t first, std::int64_t last) {
  engine::Prompt piece;
  piece.token_ids.assign(prompt.token_ids.begin() + first, prompt.token_ids.begin() + last);
  engine::set_plain_positions(piece);
  return {std::move(piece.token_ids), std::move(piece.positions), {}};
}

class SequenceMaker {
 public:
  SequenceMaker(const model::ModelFiles& files, ops::Backend& backend, Calibration& calibration)
      : files_(files),
        backend_(backend),
        calibration_(calibration),
        tokenizer_(engine::open_tokenizer(files)),
        builder_(files, tokenizer_, {}) {}

  void add(const Request& request) {
    const engine::BuiltPrompt built = builder_.build(request);
    const engine::Prompt& prompt = built.prompt;
    for (const std::int32_t id : prompt.token_ids) {
      if (id < 0 || id >= files_.config.text.vocab_size) {
        fail(ErrorKind::bad_file, "{}: the tokenizer gives id {}, the model's vocabulary has {}", files_.path.string(), id,
             files_.config.text.vocab_size);
      }
    }
    if (request.raw_text && prompt.images.empty()) {
      for (std::int64_t first = 0; first < prompt.size(); first += kPieceTokens) {
        sequences.push_back(piece_of(prompt, first, std::min(first + kPieceTokens, prompt.size())));
      }
      return;
    }
    if (prompt.images.empty()) {
      if (prompt.size() > kMostSequenceTokens) ++cut_;
      sequences.push_back(piece_of(prompt, 0, std::min(prompt.size(), kMostSequenceTokens)));
      return;
    }
    StreamedSequence sequence{prompt.token_ids, prompt.positions, {}};
    for (const engine::ImageSpan& span : prompt.images) {
      sequence.features.push_back({span.first_token, encode(tower(), backend_, span, static_cast<std::size_t>(files_.config.text.hidden_size))});
    }
    calibration_.pictures += static_cast<std::int64_t>(request.images.size());
    sequences.push_back(std::move(sequence));
  }

  void finish() {
    if (cut_ > 0) {
      calibration_.notes.push_back(fmt::format("{} conversation{} longer than {} tokens: only the beginning is used", cut_,
                                               cut_ == 1 ? "" : "s", kMostSequenceTokens));
    }
    for (const StreamedSequence& sequence : sequences) calibration_.tokens += static_cast<std::int64_t>(sequence.token_ids.size());
    calibration_.sequences = static_cast<std::int64_t>(sequences.size());
    tower_.reset();
    reader_.reset();
  }

  std::vector<StreamedSequence> sequences;

 private:
  model::VisionTower& tower() {
    if (!tower_) {
      reader_ = std::make_unique<model::WeightReader>(files_.naming, files_.config, files_.text, files_.vision);
      tower_ = files_.config.family == model::Family::minicpmv4_6
                   ? model::make_minicpm_vision_tower(backend_, files_.config.vision, *reader_)
                   : model::make_qwen_vision_tower(backend_, files_.config.vision, *reader_);
    }
    return *tower_;
  }

  const model::ModelFiles& files_;
  ops::Backend& backend_;
  Calibration& calibration_;
  text::Tokenizer tokenizer_;
  engine::PromptBuilder builder_;
  std::unique_ptr<model::WeightReader> reader_;
  std::unique_ptr<model::VisionTower> tower_;
  int cut_ = 0;
};

}  // namespace

Calibration calibrate(const model::ModelFiles& files, ops::Backend& backend, const std::vector<Request>& prompts,
                      const std::function<void(double fraction, std::string_view what)>& progress) {
  HEIRLOOM_CHECK(files.config.text.num_experts > 0);
  Calibration calibration;
  SequenceMaker maker(files, backend, calibration);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (progress) progress(static_cast<double>(i) / static_cast<double>(prompts.size()), "read calibration");
    try {
      maker.add(prompts[i]);
    } catch (const Error& error) {
      throw error.wrap(fmt::format("calibration prompt {}", i + 1));
    }
  }
  if (progress) progress(1, "read calibration");
  maker.finish();
  if (calibration.tokens == 0) fail(ErrorKind::usage, "the calibration set holds no text; expected prompts to run");
  SaliencyTaps taps(files.config.text);
  model::stream_layers(files, backend, maker.sequences, taps, [&](double fraction) {
    if (progress) progress(fraction, "calibrate");
  });
  if (progress) progress(1, "calibrate");
  calibration.layers = taps.finish(files.path.string());
  return calibration;
}

}  // namespace heirloom::tools
