// Vision tower of qwen3_5 and qwen3_5_moe (transformers: Qwen3_5VisionModel). Patches come in 2x2-merge-block order, so
// that four consecutive rows are one output token.
#include <algorithm>
#include <cmath>

#include "image/positions.h"
#include "model/vision_block.h"
#include "model/vision_tower.h"
#include "model/weight_reader.h"

namespace heirloom::model {
namespace {

constexpr int kChannels = 3;

class QwenVisionTower : public VisionTower {
 public:
  QwenVisionTower(ops::Backend& backend, const VisionConfig& config, const WeightReader& weights)
      : backend_(backend), config_(config), scratch_(backend), parts_(backend, config_, scratch_) {
    const std::int64_t hidden = config.hidden_size, merged = hidden * merge_unit();
    patch_embed_ = load_patch_embedding(weights);
    position_table_ = weights.load_values(backend, "v.position_embd.weight", config.num_position_embeddings * hidden);
    for (int i = 0; i < config.depth; ++i) {
      blocks_.push_back(parts_.load_block(weights, "v.blk." + std::to_string(i) + "."));
    }
    merger_norm_ = parts_.load_norm(weights, "v.post_ln", hidden);
    merger_fc1_ = parts_.load_linear(weights, "mm.0", merged, merged);
    merger_fc2_ = parts_.load_linear(weights, "mm.2", config.out_hidden_size, merged);

    // Axial rotary embedding: the first half of the frequencies turns with the row, the second with the column.
    const int head_dim = config.hidden_size / config.num_heads, axis_dim = head_dim / 2;
    for (int i = 0; i < axis_dim; i += 2) {
      const float exponent = static_cast<float>(i) / static_cast<float>(axis_dim);
      inverse_frequencies_.push_back(1.0f / std::pow(static_cast<float>(config.rope_theta), exponent));
    }
  }

  std::uint64_t weight_bytes() const override { return parts_.weight_bytes(); }

  VisionOutput encode(const VisionInput& input, Taps* taps) override {
    TapEmitter emit(backend_, taps);
    scratch_.reset();
    std::vector<GridThw> grids;
    std::int64_t patches = 0;
    VisionOutput output;
    for (const VisionInput::Grid& grid : input.grids) {
      grids.push_back({grid.t, grid.h, grid.w});
      const std::int64_t count = static_cast<std::int64_t>(grid.t) * grid.h * grid.w;
      patches += count;
      output.tokens_per_grid.push_back(count / merge_unit());
    }
    const int side = static_cast<int>(std::lround(std::sqrt(config_.num_position_embeddings)));
    const BilinearTaps interpolation =
        bilinear_position_taps(grids, side, config_.spatial_merge_size);
    const std::vector<std::int32_t> positions = vision_position_ids(grids, config_.spatial_merge_size);
    const std::vector<std::int32_t> segments = vision_cu_seqlens(grids);
    emit.host_ints("vision.position_ids", positions, {patches, 2});
    emit.host_ints("vision.cu_seqlens", segments, {static_cast<std::int64_t>(segments.size())});
    upload_rope(positions, patches, emit);

    const std::int64_t hidden = config_.hidden_size;
    const ops::Matrix pixels = parts_.upload_pixels(input, patches, patch_values());
    const ops::Matrix x = scratch_.matrix(patches, hidden);
    parts_.linear(pixels, patch_embed_, x);
    emit.matrix("vision.patch_embed", x);
    // The interpolated position rows are summed first and added once, as the reference does.
    const ops::Matrix positions_sum = scratch_.matrix(patches, hidden);
    backend_.zero(positions_sum.data, static_cast<std::size_t>(patches * hidden) * sizeof(float));
    backend_.add_weighted_rows({position_table_.f32(), config_.num_position_embeddings, hidden},
                               scratch_.upload(std::span<const std::int32_t>(interpolation.indices)),
                               scratch_.upload(std::span<const float>(interpolation.weights)), 4, positions_sum);
    backend_.add(x, positions_sum);
    emit.matrix("vision.embeddings", x);

    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      parts_.run(blocks_[i], "vision.layer" + std::to_string(i), x, segments, rope_cos_, rope_sin_, emit);
    }

    const std::int64_t merged = hidden * merge_unit(), tokens = patches / merge_unit();
    const ops::Matrix normed = scratch_.matrix(patches, hidden);
    parts_.layer_norm(x, merger_norm_, normed);
    const ops::Matrix stacked{normed.data, tokens, merged};  // four consecutive patches are one token
    const ops::Matrix inner = scratch_.matrix(tokens, merged);
    parts_.linear(stacked, merger_fc1_, inner);
    backend_.gelu(inner, ops::Gelu::erf);
    output.tokens = tokens;
    output.features =
        backend_.make_buffer(static_cast<std::size_t>(tokens * config_.out_hidden_size) * sizeof(float));
    parts_.linear(inner, merger_fc2_, {output.features.f32(), tokens, config_.out_hidden_size});
    emit.floats("vision.merger", output.features.f32(), {tokens, config_.out_hidden_size});
    return output;
  }

 private:
  std::int64_t merge_unit() const { return static_cast<std::int64_t>(config_.spatial_merge_size) * config_.spatial_merge_size; }
  std::int64_t patch_values() const {
    return static_cast<std::int64_t>(kChannels) * config_.temporal_patch_size * config_.patch_size * config_.patch_size;
  }

  /// One [hidden, 3 * 2 * P * P] matrix; a GGUF holds its two frames apart (v.patch_embd.weight and .weight.1).
  BiasedLinear load_patch_embedding(const WeightReader& weights) {
    const std::int64_t hidden = config_.hidden_size;
    if (!weights.has("v.patch_embd.weight.1")) return parts_.load_linear(weights, "v.patch_embd", hidden, patch_values());
    const std::int64_t patch = static_cast<std::int64_t>(config_.patch_size) * config_.patch_size;
    std::vector<float> joined(static_cast<std::size_t>(hidden * patch_values()));
    for (std::int64_t frame = 0; frame < 2; ++frame) {
      const std::vector<float> part = weights.values(frame == 0 ? "v.patch_embd.weight" : "v.patch_embd.weight.1",
                                                     hidden * kChannels * patch);
      for (std::int64_t dc = 0; dc < hidden * kChannels; ++dc) {
        std::copy_n(part.data() + dc * patch, patch, joined.data() + (dc * 2 + frame) * patch);
      }
    }
    const ops::WeightData data{"v.patch_embd.weight", DType::f32, 1, hidden, patch_values(),
                               {{reinterpret_cast<const std::byte*>(joined.data()), hidden}}};
    return {backend_.load_weight(data), weights.load_values(backend_, "v.patch_embd.bias", hidden)};
  }

  void upload_rope(const std::vector<std::int32_t>& positions, std::int64_t patches, TapEmitter& emit) {
    const std::size_t per_axis = inverse_frequencies_.size(), half = 2 * per_axis;
    std::vector<float> cos(static_cast<std::size_t>(patches) * half), sin(cos.size());
    for (std::size_t n = 0; n < static_cast<std::size_t>(patches); ++n) {
      for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[2 * n + i / per_axis]) * inverse_frequencies_[i % per_axis];
        cos[n * half + i] = std::cos(angle);
        sin[n * half + i] = std::sin(angle);
      }
    }
    if (emit.wants("vision.rope_cos")) {  // the dump repeats the halves
      std::vector<float> both_cos, both_sin;
      for (std::size_t n = 0; n < static_cast<std::size_t>(patches); ++n) {
        for (std::size_t i = 0; i < 2 * half; ++i) {
          both_cos.push_back(cos[n * half + i % half]);
          both_sin.push_back(sin[n * half + i % half]);
        }
      }
      const std::int64_t width = static_cast<std::int64_t>(2 * half);
      emit.host_floats("vision.rope_cos", both_cos, {patches, width});
      emit.host_floats("vision.rope_sin", both_sin, {patches, width});
    }
    rope_cos_ = scratch_.upload(std::span<const float>(cos));
    rope_sin_ = scratch_.upload(std::span<const float>(sin));
  }

  ops::Backend& backend_;
  VisionConfig config_;
  Scratch scratch_;
  VisionBlocks parts_;
  BiasedLinear patch_embed_, merger_fc1_, merger_fc2_;
  ops::Buffer position_table_;  // [num_position_embeddings, hidden_size]
  std::vector<VisionBlock> blocks_;
  LayerNormWeights merger_norm_;
  std::vector<float> inverse_frequencies_;  // per axis
  float* rope_cos_ = nullptr;               // device [patches, head_dim / 2]
  float* rope_sin_ = nullptr;
};

}  // namespace

std::unique_ptr<VisionTower> make_qwen_vision_tower(ops::Backend& backend, const VisionConfig& config,
                                                    const WeightReader& weights) {
  return std::make_unique<QwenVisionTower>(backend, config, weights);
}

}  // namespace heirloom::model
