// What config.json (or GGUF metadata) says about a model, checked and in our words (STYLE: sizes spelled as config.json does).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heirloom {
class GgufFile;
}

namespace heirloom::model {

enum class Family { qwen3_5, qwen3_5_moe, minicpmv4_6 };
enum class LayerType : std::uint8_t { linear_attention, full_attention };

struct TextConfig {
  int vocab_size = 0, hidden_size = 0, num_layers = 0;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0, rotary_dim = 0;
  int linear_num_k_heads = 0, linear_num_v_heads = 0, linear_head_k_dim = 0, linear_head_v_dim = 0, linear_conv_kernel = 4;
  int intermediate_size = 0;                                       // dense MLP
  int num_experts = 0, num_experts_per_token = 0, moe_intermediate_size = 0, shared_expert_intermediate_size = 0;
  float rms_norm_eps = 1e-6f;
  double rope_theta = 1e7;
  int mrope_section[3] = {11, 11, 10};
  bool tie_word_embeddings = false;
  bool v_heads_tiled = false;   // GGUF order of value heads (see ops::GdnWeights)
  std::vector<LayerType> layer_types;
  int context_length = 0;       // max_position_embeddings
};

struct VisionConfig {
  bool present = false;
  int hidden_size = 0, intermediate_size = 0, depth = 0, num_heads = 0, patch_size = 0, temporal_patch_size = 1;
  int num_position_embeddings = 0;  // side * side
  int out_hidden_size = 0, spatial_merge_size = 2;
  int insert_layer_id = -1;         // MiniCPM: the window merger follows this layer
  int merger_times = 1;             // MiniCPM: merges of 2x2 in the final projector
  float layer_norm_eps = 1e-6f;
  double rope_theta = 10000.0;
  bool downsample_4x = false;       // MiniCPM: default mode of the checkpoint
};

struct ModelConfig {
  Family family = Family::qwen3_5;
  TextConfig text;
  VisionConfig vision;
  int image_token_id = -1, video_token_id = -1;  // -1: found by the placeholder's text in the vocabulary
};

/// From the text of config.json. Error{bad_file} for an unsupported model_type, a missing key, a contradiction.
ModelConfig config_from_json(std::string_view json_text, const std::string& source);
/// From a GGUF's keys; `vision` is the file with the clip.* keys (the same one, an mmproj file, or null).
ModelConfig config_from_gguf(const GgufFile& text, const GgufFile* vision);
/// Error{bad_file} if sizes contradict each other or are out of every sensible range.
void check_config(const ModelConfig& config, const std::string& source);
/// "qwen3_5", "qwen3_5_moe", "minicpmv4_6".
const char* family_name(Family family);

}  // namespace heirloom::model
