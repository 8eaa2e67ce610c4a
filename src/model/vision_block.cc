#include "model/vision_block.h"

#include "base/check.h"
#include "model/weight_reader.h"

namespace heirloom::model {

BiasedLinear VisionBlocks::load_linear(const WeightReader& weights, const std::string& name, std::int64_t rows,
                                       std::int64_t cols) {
  BiasedLinear result{weights.load(backend_, weights.matrix(name + ".weight", rows, cols)),
                      weights.load_values(backend_, name + ".bias", rows)};
  bytes_ += result.weight->bytes;
  return result;
}

LayerNormWeights VisionBlocks::load_norm(const WeightReader& weights, const std::string& name, std::int64_t size) {
  return {weights.load_values(backend_, name + ".weight", size), weights.load_values(backend_, name + ".bias", size)};
}

VisionAttention VisionBlocks::load_attention(const WeightReader& weights, const std::string& name) {
  const std::int64_t hidden = config_.hidden_size;
  VisionAttention attention;
  if (weights.has(name + "attn_qkv.weight")) {
    const std::vector<float> bias = weights.values(name + "attn_qkv.bias", 3 * hidden);
    std::int64_t first = 0;
    for (BiasedLinear* part : {&attention.q, &attention.k, &attention.v}) {
      part->weight =
          weights.load(backend_, weights.matrix_rows(name + "attn_qkv.weight", first, hidden, 3 * hidden, hidden));
      part->bias = backend_.make_buffer(
          std::span(bias).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(hidden)));
      bytes_ += part->weight->bytes;
      first += hidden;
    }
  } else {
    attention.q = load_linear(weights, name + "attn_q", hidden, hidden);
    attention.k = load_linear(weights, name + "attn_k", hidden, hidden);
    attention.v = load_linear(weights, name + "attn_v", hidden, hidden);
  }
  attention.out = load_linear(weights, name + "attn_out", hidden, hidden);
  return attention;
}

VisionBlock VisionBlocks::load_block(const WeightReader& weights, const std::string& name) {
  const std::int64_t hidden = config_.hidden_size;
  VisionBlock block;
  block.norm1 = load_norm(weights, name + "ln1", hidden);
  block.norm2 = load_norm(weights, name + "ln2", hidden);
  block.attention = load_attention(weights, name);
  block.fc1 = load_linear(weights, name + "ffn_up", config_.intermediate_size, hidden);
  block.fc2 = load_linear(weights, name + "ffn_down", hidden, config_.intermediate_size);
  return block;
}

ops::Matrix VisionBlocks::upload_pixels(const VisionInput& input, std::int64_t patches, std::int64_t values) {
  HEIRLOOM_CHECK(static_cast<std::int64_t>(input.pixels.size()) == patches * values);
  const std::uint8_t* bytes = scratch_.upload(std::span<const std::uint8_t>(input.pixels));
  const float* table = scratch_.upload(std::span<const float>(input.values[0].data(), input.values.size() * input.values[0].size()));
  const ops::Matrix pixels = scratch_.matrix(patches, values);
  backend_.byte_values(bytes, table, values / static_cast<std::int64_t>(input.values.size()), pixels);
  return pixels;
}

void VisionBlocks::attend(ops::Matrix x, const VisionAttention& attention, std::span<const std::int32_t> segments,
                          const float* rope_cos, const float* rope_sin, ops::Matrix out) {
  const Scratch::Frame frame(scratch_);
  const auto [q, k, v] = scratch_.matrices<3>(x.rows, x.cols);
  const ops::Matrix attended = scratch_.matrix(x.rows, x.cols);
  const ops::LinearOut projections[] = {attention.q.to(q.data), attention.k.to(k.data), attention.v.to(v.data)};
  backend_.linear(x, projections);
  backend_.segment_attention(q, k, v, config_.num_heads, segments, rope_cos, rope_sin, attended);
  linear(attended, attention.out, out);
}

void VisionBlocks::run(const VisionBlock& block, const std::string& name, ops::Matrix x,
                       std::span<const std::int32_t> segments, const float* rope_cos, const float* rope_sin,
                       TapEmitter& emit) {
  const Scratch::Frame frame(scratch_);
  const ops::Matrix normed = scratch_.matrix(x.rows, x.cols), delta = scratch_.matrix(x.rows, x.cols),
                    inner = scratch_.matrix(x.rows, config_.intermediate_size);
  layer_norm(x, block.norm1, normed);
  attend(normed, block.attention, segments, rope_cos, rope_sin, delta);
  emit.matrix(name + ".attn_out", delta);
  backend_.add(x, delta);

  layer_norm(x, block.norm2, normed);
  linear(normed, block.fc1, inner);
  backend_.gelu(inner, ops::Gelu::tanh);
  linear(inner, block.fc2, delta);
  backend_.add(x, delta);
  emit.matrix(name + ".out", x);
}

}  // namespace heirloom::model
