// The pre-norm transformer block that both towers are built of, and the helpers that load their parameters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/scratch.h"
#include "model/tap_emitter.h"
#include "ops/backend.h"

namespace heirloom::model {

class WeightReader;

/// y = x * weight^T + bias with its parameters.
struct BiasedLinear {
  std::unique_ptr<ops::Weight> weight;
  ops::Buffer bias;
  ops::LinearOut to(float* out) const { return {weight.get(), out, bias.f32()}; }
};

struct LayerNormWeights {
  ops::Buffer weight, bias;
};

struct VisionAttention {
  BiasedLinear q, k, v, out;
};

struct VisionBlock {
  LayerNormWeights norm1, norm2;
  VisionAttention attention;
  BiasedLinear fc1, fc2;
};

/// Loads parameters and runs blocks of one tower. Temporary memory comes from `scratch`.
class VisionBlocks {
 public:
  VisionBlocks(ops::Backend& backend, const VisionConfig& config, Scratch& scratch)
      : backend_(backend), config_(config), scratch_(scratch) {}

  BiasedLinear load_linear(const WeightReader& weights, const std::string& name, std::int64_t rows, std::int64_t cols);
  LayerNormWeights load_norm(const WeightReader& weights, const std::string& name, std::int64_t size);
  /// Attention projections `name`attn_{q,k,v,out}, or one `name`attn_qkv cut in three.
  VisionAttention load_attention(const WeightReader& weights, const std::string& name);
  VisionBlock load_block(const WeightReader& weights, const std::string& name);
  std::uint64_t weight_bytes() const { return bytes_; }

  void layer_norm(ops::Matrix x, const LayerNormWeights& norm, ops::Matrix out) {
    backend_.layer_norm(x, norm.weight.f32(), norm.bias.f32(), config_.layer_norm_eps, out);
  }
  void linear(ops::Matrix x, const BiasedLinear& layer, ops::Matrix out) {
    const ops::LinearOut target = layer.to(out.data);
    backend_.linear(x, {&target, 1});
  }
  /// The picture's patches as values: [patches, values].
  ops::Matrix upload_pixels(const VisionInput& input, std::int64_t patches, std::int64_t values);
  /// out = projection of attention inside `segments` of x (already normalised).
  void attend(ops::Matrix x, const VisionAttention& attention, std::span<const std::int32_t> segments,
              const float* rope_cos, const float* rope_sin, ops::Matrix out);
  /// x += attention(norm1(x)); x += fc2(gelu_tanh(fc1(norm2(x)))). Taps NAME.attn_out and NAME.out.
  void run(const VisionBlock& block, const std::string& name, ops::Matrix x, std::span<const std::int32_t> segments,
           const float* rope_cos, const float* rope_sin, TapEmitter& emit);

 private:
  ops::Backend& backend_;
  const VisionConfig& config_;
  Scratch& scratch_;
  std::uint64_t bytes_ = 0;
};

}  // namespace heirloom::model
