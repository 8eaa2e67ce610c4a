#include "model/config.h"

#include <cmath>

#include "base/check.h"

namespace heirloom::model {
namespace {

// Sizes are bounded so that no product of a few of them can leave 64 bits; no real model comes near.
constexpr int kLargest = 1 << 24;

void expect(bool holds, const std::string& source, const char* rule) {
  if (!holds) fail(ErrorKind::bad_file, "{}: the config does not hold together: {}", source, rule);
}

bool sane(int value) { return value >= 1 && value <= kLargest; }

}  // namespace

void check_config(const ModelConfig& config, const std::string& source) {
  const TextConfig& text = config.text;
  expect(sane(text.vocab_size) && sane(text.hidden_size) && sane(text.num_q_heads) && sane(text.num_kv_heads) &&
             sane(text.head_dim) && sane(text.linear_num_k_heads) && sane(text.linear_num_v_heads) &&
             sane(text.linear_head_k_dim) && sane(text.linear_head_v_dim) && sane(text.linear_conv_kernel),
         source, "sizes and counts must be between 1 and 2^24");
  expect(text.num_layers >= 1 && text.num_layers <= 4096, source, "the number of layers must be between 1 and 4096");
  expect(text.num_q_heads % text.num_kv_heads == 0, source,
         "the number of attention heads must be a multiple of the number of key-value heads");
  expect(text.linear_num_v_heads % text.linear_num_k_heads == 0, source,
         "the number of linear value heads must be a multiple of the number of linear key heads");
  expect(text.rotary_dim >= 2 && text.rotary_dim % 2 == 0 && text.rotary_dim <= text.head_dim, source,
         "the rotary dimension must be even and at most head_dim");
  expect(text.linear_conv_kernel == 4, source, "the convolution kernel must have 4 taps");
  expect(text.head_dim <= 1024 && text.num_q_heads / text.num_kv_heads <= 128, source,
         "attention heads may have at most 1024 values and 128 query heads for each key-value head");
  expect(text.context_length >= 1, source, "the context length must be at least 1");
  expect(std::isfinite(text.rms_norm_eps) && text.rms_norm_eps >= 0, source, "the norm's epsilon must be a small number");
  if (config.family == Family::qwen3_5_moe) {
    expect(sane(text.num_experts) && sane(text.moe_intermediate_size) && sane(text.shared_expert_intermediate_size), source,
           "expert sizes and counts must be between 1 and 2^24");
    if (text.num_experts_per_token < 1 || text.num_experts_per_token > text.num_experts) {
      fail(ErrorKind::bad_file, "{}: {} experts are used for each token, but the model has {}; expected at most that many",
           source, text.num_experts_per_token, text.num_experts);
    }
  } else {
    expect(sane(text.intermediate_size), source, "the feed-forward size must be between 1 and 2^24");
  }
  if (!config.vision.present) return;
  const VisionConfig& vision = config.vision;
  expect(sane(vision.hidden_size) && sane(vision.intermediate_size) && sane(vision.depth) && sane(vision.num_heads) &&
             sane(vision.num_position_embeddings) && vision.patch_size >= 1 && vision.patch_size <= 256 &&
             vision.depth <= 4096,
         source, "vision sizes and counts must be positive and of a sensible size");
  expect(vision.hidden_size % vision.num_heads == 0 && vision.hidden_size / vision.num_heads <= 512, source,
         "the vision width must be a multiple of its heads, with at most 512 values in each");
  const int side = static_cast<int>(std::lround(std::sqrt(vision.num_position_embeddings)));
  expect(side * side == vision.num_position_embeddings, source, "the vision position table must be square");
  if (vision.out_hidden_size != text.hidden_size) {
    fail(ErrorKind::bad_file, "{}: the vision part gives features of {} values, the language model takes {}", source,
         vision.out_hidden_size, text.hidden_size);
  }
  if (config.family == Family::minicpmv4_6) {
    expect(vision.merger_times >= 1 && vision.merger_times <= 8, source, "merger_times must be between 1 and 8");
  } else {
    expect(vision.spatial_merge_size == 2 && vision.temporal_patch_size == 2, source,
           "patches must be merged 2x2 and have two frames");
  }
}

const char* family_name(Family family) {
  switch (family) {
    case Family::qwen3_5: return "qwen3_5";
    case Family::qwen3_5_moe: return "qwen3_5_moe";
    case Family::minicpmv4_6: return "minicpmv4_6";
  }
  return "";
}

}  // namespace heirloom::model
