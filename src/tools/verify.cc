#include "tools/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "format/quant_blocks.h"
#include "format/safetensors.h"
#include "model/tap_emitter.h"
#include "tools/rounding_bounds.h"
#include "tools/sequence.h"
#include "tools/verify_pictures.h"

namespace heirloom::tools {
namespace {

namespace fs = std::filesystem;

/// Everything that our run produced, by the dump's names.
class Produced : public model::Taps {
 public:
  explicit Produced(const TensorSource& dump) {
    for (const std::string& name : dump.names()) {
      names_.insert(name);
      // Stages of one mixer are made together: a group is tapped as soon as the dump has one of its tensors.
      for (const char* group : {".gdn.", ".attn.", ".ffn."}) {
        if (const std::size_t at = name.find(group); at != std::string::npos) {
          groups_.insert(name.substr(0, at + std::strlen(group)));
        }
      }
    }
    all_routers_ = names_.contains("lm.router_gap");
  }

  bool wants(std::string_view name) const override {
    if (names_.contains(name)) return true;
    if (all_routers_ && name.ends_with(".ffn.router_logits")) return true;
    for (const char* group : {".gdn.", ".attn.", ".ffn."}) {
      if (const std::size_t at = name.find(group); at != std::string::npos) {
        return groups_.contains(std::string(name.substr(0, at + std::strlen(group))));
      }
    }
    return false;
  }
  void floats(std::string_view name, std::span<const std::int64_t>, std::span<const float> values) override {
    floats_[std::string(name)].assign(values.begin(), values.end());
  }
  void ints(std::string_view name, std::span<const std::int64_t>, std::span<const std::int32_t> values) override {
    ints_[std::string(name)].assign(values.begin(), values.end());
  }

  std::map<std::string, std::vector<float>> floats_;
  std::map<std::string, std::vector<std::int32_t>> ints_;
  std::map<std::string, std::string> notes_;  // why a stage is judged otherwise: shown beside it
  std::optional<bool> tokens_ok_;

 private:
  std::set<std::string, std::less<>> names_;
  std::set<std::string> groups_;
  bool all_routers_ = false;
};

std::vector<std::int32_t> dump_ints(const TensorView& tensor) {
  std::vector<std::int32_t> values(tensor.elements());
  if (tensor.type == DType::i32) {
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  } else if (tensor.type == DType::u8) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::to_integer<std::int32_t>(tensor.data[i]);
  } else if (tensor.type == DType::i64) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::int64_t wide = 0;
      std::memcpy(&wide, tensor.data.data() + i * sizeof wide, sizeof wide);
      values[i] = static_cast<std::int32_t>(wide);
    }
  } else {
    fail(ErrorKind::bad_file, "tensor {} of the dump has type {}, expected int32", tensor.name, dtype_name(tensor.type));
  }
  return values;
}

std::vector<float> dump_floats(const TensorView& tensor) {
  std::vector<float> values(tensor.elements());
  dequantize_row(tensor.type, tensor.data.data(), values.data(), values.size());
  return values;
}

bool is_float(DType type) { return type == DType::f32 || type == DType::f16 || type == DType::bf16; }

void compare_floats(const std::vector<float>& ours, const std::vector<float>& reference, StageResult& result) {
  double difference2 = 0, reference2 = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(static_cast<double>(ours[i]) - reference[i]);
    // A NaN must not slip through a comparison: count it as infinitely far away.
    result.max_abs = std::isnan(difference) ? HUGE_VAL : std::max(result.max_abs, difference);
    result.max_ref = std::max(result.max_ref, std::abs(static_cast<double>(reference[i])));
    difference2 += difference * difference;
    reference2 += static_cast<double>(reference[i]) * reference[i];
  }
  result.rel_l2 = reference2 > 0 ? std::sqrt(difference2 / reference2) : std::sqrt(difference2);
}

double share_of(const StageResult& result, double allowed_abs, double allowed_l2) {
  const auto share = [](double value, double allowed) { return value == 0 ? 0.0 : allowed > 0 ? value / allowed : HUGE_VAL; };
  const double larger = std::max(share(result.max_abs, allowed_abs), share(result.rel_l2, allowed_l2));
  return std::isnan(result.rel_l2) ? HUGE_VAL : larger;
}

/// Mean over rows of `width` logits of KL(softmax(reference) || softmax(ours)), in nats.
double mean_kl(const std::vector<float>& ours, const std::vector<float>& reference, std::size_t width) {
  const auto log_sum = [&](const std::vector<float>& logits, std::size_t row) {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * width);
    const double largest = *std::max_element(first, first + static_cast<std::ptrdiff_t>(width));
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += std::exp(first[static_cast<std::ptrdiff_t>(i)] - largest);
    return largest + std::log(sum);
  };
  double total = 0;
  const std::size_t rows = reference.size() / width;
  for (std::size_t row = 0; row < rows; ++row) {
    const double theirs = log_sum(reference, row), mine = log_sum(ours, row);
    for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
      const double log_p = reference[i] - theirs;
      total += std::exp(log_p) * (log_p - (ours[i] - mine));
    }
  }
  return total / static_cast<double>(std::max<std::size_t>(rows, 1));
}

void compare_ints(const std::vector<std::int32_t>& ours, const std::vector<std::int32_t>& reference, StageResult& result) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(static_cast<double>(ours[i]) - reference[i]);
    different += difference != 0;
    result.max_abs = std::max(result.max_abs, difference);
    result.max_ref = std::max(result.max_ref, std::abs(static_cast<double>(reference[i])));
  }
  result.rel_l2 = static_cast<double>(different) / static_cast<double>(std::max<std::size_t>(reference.size(), 1));
}

/// lm.router_gap [layers, T]: logit of the last chosen minus logit of the first unchosen expert.
void add_router_gap(const model::TextConfig& config, Produced& produced) {
  std::vector<float> gaps;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto found = produced.floats_.find("lm.layer" + std::to_string(layer) + ".ffn.router_logits");
    if (found == produced.floats_.end()) return;
    const auto experts = static_cast<std::size_t>(config.num_experts), k = static_cast<std::size_t>(config.num_experts_per_token);
    for (std::size_t row = 0; row < found->second.size() / experts; ++row) {
      std::vector<float> sorted(found->second.begin() + static_cast<std::ptrdiff_t>(row * experts),
                                found->second.begin() + static_cast<std::ptrdiff_t>((row + 1) * experts));
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      gaps.push_back(k < experts ? sorted[k - 1] - sorted[k] : HUGE_VALF);
    }
  }
  produced.floats_["lm.router_gap"] = std::move(gaps);
}

float margin_of(std::span<const float> logits) {
  float best = -HUGE_VALF, second = -HUGE_VALF;
  for (const float logit : logits) {
    if (logit > best) {
      second = best;
      best = logit;
    } else {
      second = std::max(second, logit);
    }
  }
  return best - second;
}

class DumpRun {
 public:
  DumpRun(const model::ModelFiles& files, model::Model& model, const VerifyOptions& options, const RoundingBounds& rounding,
          const fs::path& path)
      : files_(files), model_(model), options_(options), rounding_(rounding), path_(path), dump_(path), produced_(dump_) {}

  void run(VerifyReport& report) {
    const bool pictures = dump_.find("vision.pixel_u8") != nullptr || fs::exists(json_path());
    std::vector<std::int32_t> ids;
    PicturePrompt prompt;
    if (pictures) {
      prompt = run_pictures();
      ids = prompt.token_ids;
    } else {
      const TensorView* input = dump_.find("input_ids");
      if (input == nullptr) {
        fail(ErrorKind::bad_file, "{}: no input_ids; expected a dump of the golden kit", path_.string());
      }
      ids = dump_ints(*input);
      prompt.positions = text_positions(0, static_cast<std::int32_t>(ids.size()));
    }
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= model_.config().text.vocab_size) {
        fail(ErrorKind::usage, "{}: token id {} is outside the model's vocabulary of {}; the dump belongs to another model",
             path_.string(), id, model_.config().text.vocab_size);
      }
    }
    run_text(ids, prompt);
    if (model_.config().text.num_experts > 0) add_router_gap(model_.config().text, produced_);
    judge(report, pictures);
  }

 private:
  fs::path json_path() const { return fs::path(path_).replace_extension(".json"); }

  PicturePrompt run_pictures() {
    const fs::path images =
        options_.images.empty() ? path_.parent_path().parent_path().parent_path() / "images" : options_.images;
    PicturePrompt prompt = load_picture_prompt(files_, json_path(), images, dump_.find("vision.pixel_values") != nullptr);
    for (auto& [name, values] : prompt.ints) produced_.ints_[name] = std::move(values);
    for (auto& [name, values] : prompt.floats) produced_.floats_[name] = std::move(values);
    prompt.encoded = model_.encode_image(prompt.vision, &produced_);
    if (prompt.encoded.tokens != prompt.num_feature_rows()) {
      fail(ErrorKind::internal, "{}: {} features for {} placeholders", path_.string(), prompt.encoded.tokens,
           prompt.num_feature_rows());
    }
    prompt.place_features();
    return prompt;
  }

  void run_text(const std::vector<std::int32_t>& ids, PicturePrompt& prompt) {
    const auto rows = static_cast<std::int32_t>(ids.size());
    const auto vocab = static_cast<std::size_t>(model_.config().text.vocab_size);
    Sequence sequence(model_);
    std::vector<std::int32_t> logits_rows;
    const bool all_rows = dump_.find("lm.logits") != nullptr || dump_.find("logits") != nullptr;
    for (std::int32_t row = all_rows ? 0 : rows - 1; row < rows; ++row) logits_rows.push_back(row);
    produced_.ints_["lm.position_ids"] = prompt.positions;
    const std::vector<float> logits =
        sequence.feed(ids, prompt.positions, prompt.features, logits_rows, &produced_);
    const std::span<const float> last(logits.data() + logits.size() - vocab, vocab);
    if (all_rows) produced_.floats_["lm.logits"] = produced_.floats_["logits"] = logits;
    add_states("lm.", ".gdn.", sequence);
    add_states("after_prefill.", ".", sequence);

    const std::string prefix = dump_.find("decode.decode_tokens") != nullptr ? "decode." : "";
    const TensorView* tokens_view = dump_.find(prefix + "decode_tokens");
    if (tokens_view == nullptr) return;
    const std::vector<std::int32_t> tokens = dump_ints(*tokens_view);
    std::vector<float> decode_logits, margins{margin_of(last)};
    std::vector<std::int32_t> ours{argmax(last)};
    for (std::size_t step = 0; step < tokens.size(); ++step) {
      const std::int32_t position = sequence.num_tokens() + prompt.rope_delta;
      const std::vector<float> row = sequence.feed({&tokens[step], 1}, text_positions(position, 1), {}, {0});
      decode_logits.insert(decode_logits.end(), row.begin(), row.end());
      margins.push_back(margin_of(row));
      ours.push_back(argmax(row));
    }
    ours.resize(tokens.size());  // the last row's choice is not recorded
    add_states("after_decode.", ".", sequence);
    produced_.floats_[prefix + "prefill_logits_last"].assign(last.begin(), last.end());
    judge_tokens(prefix, tokens, ours, decode_logits);
    produced_.floats_[prefix + "decode_logits"] = std::move(decode_logits);
    produced_.floats_[prefix + "margin"] = std::move(margins);
    produced_.ints_[prefix + "decode_tokens"] = std::move(ours);
  }

  static std::int32_t argmax(std::span<const float> logits) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  /// A recorded token is right where our argmax equals it, or where the reference's own margin is below ten times our
  /// logit error: there rounding decides.
  void judge_tokens(const std::string& prefix, const std::vector<std::int32_t>& tokens,
                    const std::vector<std::int32_t>& ours, const std::vector<float>& decode_logits) {
    const TensorView* logits_view = dump_.find(prefix + "decode_logits");
    const TensorView* first_view = dump_.find(prefix + "prefill_logits_last");
    const TensorView* margin_view = dump_.find(prefix + "margin");
    std::vector<float> reference = first_view != nullptr ? dump_floats(*first_view) : std::vector<float>{};
    std::vector<float> mine = produced_.floats_[prefix + "prefill_logits_last"];
    if (logits_view != nullptr) {
      const std::vector<float> rest = dump_floats(*logits_view);
      reference.insert(reference.end(), rest.begin(), rest.end());
      mine.insert(mine.end(), decode_logits.begin(), decode_logits.end());
    }
    double error = 0;
    for (std::size_t i = 0; i < std::min(reference.size(), mine.size()); ++i) {
      error = std::max(error, std::abs(static_cast<double>(reference[i]) - mine[i]));
    }
    const std::vector<float> margins = margin_view != nullptr ? dump_floats(*margin_view) : std::vector<float>{};
    bool ok = true;
    int excused = 0;
    for (std::size_t step = 0; step < tokens.size(); ++step) {
      if (ours[step] == tokens[step]) continue;
      const bool close = step < margins.size() && margins[step] < 10 * error;
      excused += close;
      ok = ok && close;
    }
    produced_.tokens_ok_ = ok;
    if (excused > 0) {
      produced_.notes_[prefix + "decode_tokens"] =
          fmt::format("{} tokens differ where the reference's margin is below 10x our logit error {:.2g}", excused, error);
    }
  }

  void add_states(const std::string& prefix, const std::string& infix, const Sequence& sequence) {
    const model::TextConfig& text = model_.config().text;
    int gdn_layer = 0;
    for (std::size_t i = 0; i < text.layer_types.size(); ++i) {
      if (text.layer_types[i] != model::LayerType::linear_attention) continue;
      const std::string name = prefix + "layer" + std::to_string(i) + infix;
      if (dump_.find(name + "recurrent_state") != nullptr) {
        std::vector<float> state = sequence.recurrent_state(gdn_layer);
        const std::int64_t head = static_cast<std::int64_t>(text.linear_head_k_dim) * text.linear_head_v_dim;
        if (text.v_heads_tiled) {
          model::untile_value_heads(state, text, head * text.linear_num_v_heads, head);
        }
        produced_.floats_[name + "recurrent_state"] = std::move(state);
      }
      if (dump_.find(name + "conv_state") != nullptr) {
        std::vector<float> state = sequence.conv_state(gdn_layer);
        if (text.v_heads_tiled) {
          model::untile_value_heads(state, text, static_cast<std::int64_t>(state.size()),
                                    static_cast<std::int64_t>(text.linear_head_v_dim) * text.linear_conv_kernel);
        }
        produced_.floats_[name + "conv_state"] = std::move(state);
      }
      ++gdn_layer;
    }
  }

  void judge(VerifyReport& report, bool pictures) {
    for (const std::string& name : dump_.names()) {
      if (name == "input_ids" && !pictures) continue;  // fed in, not produced
      const TensorView& reference = *dump_.find(name);
      StageResult result;
      result.dump = path_.parent_path().filename().string() + "/" + path_.stem().string();
      result.name = name;
      if (const auto note = produced_.notes_.find(name); note != produced_.notes_.end()) result.note = note->second;
      const bool floating = is_float(reference.type);
      const auto floats = produced_.floats_.find(name);
      const auto ints = produced_.ints_.find(name);
      const std::size_t size = floating ? (floats == produced_.floats_.end() ? 0 : floats->second.size())
                                        : (ints == produced_.ints_.end() ? 0 : ints->second.size());
      if (size != reference.elements()) {
        result.note = size == 0 ? "not produced by this model"
                                : fmt::format("{} values, the reference has {} {}", size, reference.elements(),
                                              shape_string(reference.shape));
      } else if (floating) {
        const std::vector<float> theirs = dump_floats(reference);
        compare_floats(floats->second, theirs, result);
        judge_stage(report, result, options_.tolerance * std::max(0.1, result.max_ref), options_.tolerance);
        const auto vocab = static_cast<std::uint64_t>(model_.config().text.vocab_size);
        if (name.find("logits") != std::string::npos && reference.cols() == vocab) result.kl = mean_kl(floats->second, theirs, vocab);
      } else {
        compare_ints(ints->second, dump_ints(reference), result);
        judge_stage(report, result, 0, 0);
        if (name.ends_with("decode_tokens")) {
          result.ok = produced_.tokens_ok_.value_or(false);
          result.share = result.ok ? 0 : HUGE_VAL;
        }
      }
      report.stages.push_back(std::move(result));
    }
  }

  /// Sets `ok` and `share` by what is allowed, or by what rounding may do where that is more.
  void judge_stage(VerifyReport& report, StageResult& result, double allowed_abs, double allowed_l2) const {
    result.share = share_of(result, allowed_abs, allowed_l2);
    result.ok = result.share <= 1;
    const RoundingBound* moved = rounding_.find(path_.stem().string(), result.name);
    if (moved == nullptr || result.ok) return;
    const double factor = RoundingBounds::kFactor;
    // Which entries of a list differ is chance: integers are judged by how many.
    const double abs_bound = allowed_abs == 0 ? HUGE_VAL : std::max(allowed_abs, factor * moved->max_abs);
    result.share = share_of(result, abs_bound, std::max(allowed_l2, factor * moved->rel_l2));
    result.ok = result.share <= 1;
    report.judged_by_rounding += result.ok;
    result.note = fmt::format("rounding moves the reference by {:.2e}, rel_l2 {:.2e}", moved->max_abs, moved->rel_l2);
  }

  const model::ModelFiles& files_;
  model::Model& model_;
  const VerifyOptions& options_;
  const RoundingBounds& rounding_;
  fs::path path_;
  SafetensorsFile dump_;
  Produced produced_;
};

}  // namespace

bool VerifyReport::ok() const {
  return !stages.empty() && std::all_of(stages.begin(), stages.end(), [](const StageResult& s) { return s.ok; });
}

const StageResult* VerifyReport::worst() const {
  const auto badness = [](const StageResult& stage) { return std::pair(!stage.ok, stage.ok ? std::min(stage.share, 1.0) : stage.share); };
  const auto found = std::max_element(stages.begin(), stages.end(), [&](const StageResult& a, const StageResult& b) {
    return badness(a) < badness(b);
  });
  return found == stages.end() ? nullptr : &*found;
}

namespace {

/// The yardsticks of the model whose dumps lie in `dumps`.
RoundingBounds rounding_bounds(const VerifyOptions& options, const fs::path& dumps) {
  if (!options.bf16) return {};
  const fs::path where = options.rounding.empty() ? dumps.parent_path().parent_path() / "rounding" : options.rounding;
  std::error_code error;
  const fs::path file = fs::is_regular_file(where, error) ? where : where / (dumps.filename().string() + ".json");
  if (!fs::exists(file, error)) {
    if (options.rounding.empty()) return {};
    fail(ErrorKind::usage, "--rounding {}: no {} there; expected a file of tests/golden/rounding or a folder with NAME.json for dumps/NAME",
         options.rounding.string(), file.filename().string());
  }
  return RoundingBounds(file);
}

}  // namespace

VerifyReport verify(const model::ModelFiles& files, model::Model& model, const VerifyOptions& options) {
  std::vector<fs::path> dumps;
  std::error_code error;
  if (fs::is_directory(options.reference, error)) {
    for (const auto& entry : fs::directory_iterator(options.reference)) {
      if (entry.path().extension() == ".safetensors") dumps.push_back(entry.path());
    }
    std::sort(dumps.begin(), dumps.end());
    if (dumps.empty()) {
      fail(ErrorKind::bad_file, "{}: no .safetensors dumps in this folder; expected one dumps/NAME of the golden kit",
           options.reference.string());
    }
  } else if (fs::exists(options.reference, error)) {
    dumps.push_back(options.reference);
  } else {
    fail(ErrorKind::bad_file, "{}: no such dump; expected a .safetensors file of the golden kit or a folder of them",
         options.reference.string());
  }
  VerifyReport report;
  const RoundingBounds rounding = rounding_bounds(options, fs::absolute(dumps.front()).lexically_normal().parent_path());
  for (const fs::path& dump : dumps) {
    if (dump.filename().string().starts_with("mtp_")) {
      report.passed_over.push_back(dump.filename().string() + ": draft head stages are not checked, there is no MTP head");
      continue;
    }
    DumpRun(files, model, options, rounding, dump).run(report);
  }
  return report;
}

}  // namespace heirloom::tools
