// Vision tower of MiniCPM-V-4.6 (transformers: MiniCPMV4_6VisionModel, MiniCPMV4_6ViTWindowAttentionMerger,
// MiniCPMV4_6Merger). Tiles are encoded side by side as attention segments. In 16x mode a window merger after layer
// `insert_layer_id` turns each 2x2 window into one row; the final merger joins 2x2 rows again. In 4x mode the window merger
// is skipped. Position rows are floor(i * side / n) in integers (image/positions.h).
#include <cmath>

#include "base/check.h"
#include "image/positions.h"
#include "model/vision_block.h"
#include "model/vision_tower.h"
#include "model/weight_reader.h"

namespace heirloom::model {
namespace {

constexpr int kChannels = 3, kWindow = 4;  // a window is 2x2

std::vector<GridHw> halved(const std::vector<GridHw>& grids) {
  std::vector<GridHw> result;
  for (const GridHw& grid : grids) result.push_back({grid.h / 2, grid.w / 2});
  return result;
}

class MiniCpmVisionTower : public VisionTower {
 public:
  MiniCpmVisionTower(ops::Backend& backend, const VisionConfig& config, const WeightReader& weights)
      : backend_(backend), config_(config), scratch_(backend), parts_(backend, config_, scratch_) {
    const std::int64_t hidden = config.hidden_size, stacked = hidden * kWindow;
    patch_embed_ = parts_.load_linear(weights, "v.patch_embd", hidden, patch_values());
    position_table_ = weights.load_values(backend, "v.position_embd.weight", config.num_position_embeddings * hidden);
    for (int i = 0; i < config.depth; ++i) {
      blocks_.push_back(parts_.load_block(weights, "v.blk." + std::to_string(i) + "."));
    }
    post_norm_ = parts_.load_norm(weights, "v.post_ln", hidden);
    has_window_merger_ = weights.has("v.vit_merger.ln1.weight");
    if (has_window_merger_) {
      window_.norm1 = parts_.load_norm(weights, "v.vit_merger.ln1", hidden);
      window_.attention = parts_.load_attention(weights, "v.vit_merger.");
      window_.norm2 = parts_.load_norm(weights, "v.vit_merger.ds_ln", stacked);
      window_.fc1 = parts_.load_linear(weights, "v.vit_merger.ds_ffn_up", config.intermediate_size * kWindow, stacked);
      window_.fc2 = parts_.load_linear(weights, "v.vit_merger.ds_ffn_down", hidden, config.intermediate_size * kWindow);
    }
    mergers_.resize(static_cast<std::size_t>(config.merger_times));
    for (std::size_t i = 0; i < mergers_.size(); ++i) {
      const bool last = i + 1 == mergers_.size();
      const std::string infix = i == 0 ? "" : std::to_string(i) + ".";
      mergers_[i].norm = parts_.load_norm(weights, "mm." + infix + "input_norm", stacked);
      mergers_[i].fc1 = parts_.load_linear(weights, "mm." + infix + "up", stacked, stacked);
      mergers_[i].fc2 = parts_.load_linear(weights, "mm." + infix + "down", last ? config.out_hidden_size : hidden, stacked);
    }
  }

  std::uint64_t weight_bytes() const override { return parts_.weight_bytes(); }

  VisionOutput encode(const VisionInput& input, Taps* taps) override {
    TapEmitter emit(backend_, taps);
    scratch_.reset();
    if (!input.downsample_4x && !has_window_merger_) {
      fail(ErrorKind::usage, "16x mode: this file has no window merger (it was converted for 4x); use --downsample 4x");
    }
    const int divisor = input.downsample_4x ? 1 << config_.merger_times : 2 << config_.merger_times;
    std::vector<GridHw> grids;
    for (const VisionInput::Grid& grid : input.grids) {
      HEIRLOOM_CHECK(grid.h % divisor == 0 && grid.w % divisor == 0);
      grids.push_back({grid.h, grid.w});
    }
    std::vector<std::int32_t> segments = vision_cu_seqlens(std::span<const GridHw>(grids));
    const std::int64_t patches = segments.back(), hidden = config_.hidden_size;
    const int side = static_cast<int>(std::lround(std::sqrt(config_.num_position_embeddings)));
    const std::vector<std::int32_t> positions = nearest_position_ids(grids, side);
    emit.host_ints("vision.position_ids", positions, {patches});
    const WindowIndex windows = window_index(grids);
    emit.host_ints("vision.window_index", windows.index, {patches});
    emit.host_ints("vision.window_cu_seqlens", windows.cu_seqlens, {static_cast<std::int64_t>(windows.cu_seqlens.size())});

    const ops::Matrix pixels = parts_.upload_pixels(input, patches, patch_values());
    ops::Matrix x = scratch_.matrix(patches, hidden);
    parts_.linear(pixels, patch_embed_, x);
    emit.matrix("vision.patch_embed", x);
    const std::vector<float> ones(positions.size(), 1.0f);
    backend_.add_weighted_rows({position_table_.f32(), config_.num_position_embeddings, hidden},
                               scratch_.upload(std::span<const std::int32_t>(positions)),
                               scratch_.upload(std::span<const float>(ones)), 1, x);
    emit.matrix("vision.embeddings", x);

    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      parts_.run(blocks_[i], "vision.layer" + std::to_string(i), x, segments, nullptr, nullptr, emit);
      if (!input.downsample_4x && static_cast<int>(i) == config_.insert_layer_id) {
        x = merge_windows(x, windows, emit);
        grids = halved(grids);
        segments = vision_cu_seqlens(std::span<const GridHw>(grids));
      }
    }
    const ops::Matrix normed = scratch_.matrix(x.rows, hidden);
    parts_.layer_norm(x, post_norm_, normed);
    emit.matrix("vision.post_layernorm", normed);
    return merge_into_language_space(normed, grids, emit);
  }

 private:
  struct Merger {
    LayerNormWeights norm;
    BiasedLinear fc1, fc2;
  };

  std::int64_t patch_values() const {
    return static_cast<std::int64_t>(kChannels) * config_.patch_size * config_.patch_size;
  }

  /// Attention inside each 2x2 window, then an MLP over the four stacked rows, plus their mean.
  ops::Matrix merge_windows(ops::Matrix x, const WindowIndex& windows, TapEmitter& emit) {
    const std::int64_t hidden = config_.hidden_size, merged_rows = x.rows / kWindow, stacked = hidden * kWindow;
    const ops::Matrix merged = scratch_.matrix(merged_rows, hidden);
    const Scratch::Frame frame(scratch_);
    const std::int32_t* order = scratch_.upload(std::span<const std::int32_t>(windows.index));
    const ops::Matrix normed = scratch_.matrix(x.rows, hidden), gathered = scratch_.matrix(x.rows, hidden),
                      attended = scratch_.matrix(x.rows, hidden);
    parts_.layer_norm(x, window_.norm1, normed);
    backend_.gather_rows(normed, order, gathered);
    parts_.attend(gathered, window_.attention, windows.cu_seqlens, nullptr, nullptr, attended);
    emit.matrix("vision.window_attn", attended);
    backend_.gather_rows(x, order, gathered);  // the residual in window order
    backend_.add(gathered, attended);

    const ops::Matrix windows_flat{gathered.data, merged_rows, stacked};
    const ops::Matrix windows_normed{normed.data, merged_rows, stacked};
    const ops::Matrix inner = scratch_.matrix(merged_rows, static_cast<std::int64_t>(config_.intermediate_size) * kWindow);
    parts_.layer_norm(windows_flat, window_.norm2, windows_normed);
    parts_.linear(windows_normed, window_.fc1, inner);
    backend_.gelu(inner, ops::Gelu::tanh);
    parts_.linear(inner, window_.fc2, merged);
    std::vector<std::int32_t> own_rows(static_cast<std::size_t>(x.rows));
    for (std::size_t i = 0; i < own_rows.size(); ++i) own_rows[i] = static_cast<std::int32_t>(i);
    const std::vector<float> quarter(own_rows.size(), 0.25f);
    const ops::Matrix mean = scratch_.matrix(merged_rows, hidden);
    backend_.zero(mean.data, static_cast<std::size_t>(merged_rows * hidden) * sizeof(float));
    backend_.add_weighted_rows(gathered, scratch_.upload(std::span<const std::int32_t>(own_rows)),
                               scratch_.upload(std::span<const float>(quarter)), kWindow, mean);
    backend_.add(merged, mean);
    emit.matrix("vision.window_merger", merged);
    return merged;
  }

  VisionOutput merge_into_language_space(ops::Matrix x, std::vector<GridHw> grids, TapEmitter& emit) {
    VisionOutput output;
    for (std::size_t i = 0; i < mergers_.size(); ++i) {
      const bool last = i + 1 == mergers_.size();
      const std::vector<std::int32_t> order = window_index(grids).index;
      const std::int64_t rows = x.rows / kWindow, stacked = x.cols * kWindow;
      const ops::Matrix gathered = scratch_.matrix(x.rows, x.cols), inner = scratch_.matrix(rows, stacked);
      backend_.gather_rows(x, scratch_.upload(std::span<const std::int32_t>(order)), gathered);
      const ops::Matrix windows{gathered.data, rows, stacked};
      parts_.layer_norm(windows, mergers_[i].norm, windows);
      parts_.linear(windows, mergers_[i].fc1, inner);
      backend_.gelu(inner, ops::Gelu::erf);
      grids = halved(grids);
      if (last) {
        output.features =
            backend_.make_buffer(static_cast<std::size_t>(rows * config_.out_hidden_size) * sizeof(float));
        x = {output.features.f32(), rows, config_.out_hidden_size};
      } else {
        x = scratch_.matrix(rows, config_.hidden_size);
      }
      parts_.linear(inner, mergers_[i].fc2, x);
    }
    output.tokens = x.rows;
    for (const GridHw& grid : grids) output.tokens_per_grid.push_back(static_cast<std::int64_t>(grid.h) * grid.w);
    emit.matrix("vision.merger", x);
    return output;
  }

  ops::Backend& backend_;
  VisionConfig config_;
  Scratch scratch_;
  VisionBlocks parts_;
  BiasedLinear patch_embed_;
  ops::Buffer position_table_;  // [num_position_embeddings, hidden_size]
  std::vector<VisionBlock> blocks_;
  LayerNormWeights post_norm_;
  bool has_window_merger_ = false;
  VisionBlock window_;  // norm2, fc1, fc2 act on four stacked rows
  std::vector<Merger> mergers_;
};

}  // namespace

std::unique_ptr<VisionTower> make_minicpm_vision_tower(ops::Backend& backend, const VisionConfig& config,
                                                       const WeightReader& weights) {
  return std::make_unique<MiniCpmVisionTower>(backend, config, weights);
}

}  // namespace heirloom::model
