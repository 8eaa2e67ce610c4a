// The one place that maps tensor names. Ours are GGUF's (llama.cpp's converter: conversion/qwen.py, qwen3vl.py, minicpm.py);
// Hugging Face's follow from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace heirloom::model {

/// How stored values become effective ones when a safetensors tensor is read under our name.
enum class HfTransform : std::uint8_t {
  none,
  add_one,       // zero-centred RMSNorm weights: GGUF stores 1 + w
  neg_exp,       // A_log: GGUF stores -exp(A_log)
};

/// Which part of a tensor holds value heads, which a GGUF stores tiled when num_v_heads != num_k_heads.
enum class ValueHeads : std::uint8_t {
  none,
  rows,          // every row belongs to a value head (z, a, b, A, dt)
  rows_after_qk, // the rows after the q and k heads (in_proj_qkv, conv1d)
  columns,       // columns (out_proj)
};

struct HfName {
  std::string name;  // without the language model's prefix if `text`
  bool text = true;  // lives under "model.language_model." or "model."
  HfTransform transform = HfTransform::none;
  ValueHeads value_heads = ValueHeads::none;
};

/// Hugging Face's name of the tensor that we call `name`; nullopt if the family has none (experts: see expert_names).
std::optional<HfName> hf_name(Family family, std::string_view name);

/// Names of one expert's matrices in the one-tensor-per-expert spelling: blk.N.ffn_gate_exps.weight, expert 3 ->
/// layers.N.mlp.experts.3.gate_proj.weight. `name` must be a ffn_{gate,up,down}_exps name.
std::string hf_expert_name(std::string_view name, std::int64_t expert);
/// The stacked spelling: gate and up -> layers.N.mlp.experts.gate_up_proj, down -> layers.N.mlp.experts.down_proj.
std::string hf_stacked_expert_name(std::string_view name);

/// All our tensor names of a model, in file order (text part, then vision part).
std::vector<std::string> text_tensor_names(const ModelConfig& config);
std::vector<std::string> vision_tensor_names(const ModelConfig& config);

}  // namespace heirloom::model
