// Full-size models without files: the dimensions and weight types of published models, random weights with sane scales. For speed
// and memory only; what such a model answers means nothing.
#pragma once

#include "model/model_files.h"

namespace heirloom::tools {

enum class SyntheticSize {
  dense,    // Qwen3.5-0.8B, the language model of MiniCPM-V-4.6
  vision,   // MiniCPM-V-4.6: that and SigLIP2 so400m with the window merger, F16
  mixture,  // Qwen3.6-35B-A3B with half of its experts
};

struct SyntheticOptions {
  SyntheticSize size = SyntheticSize::dense;
  DType linears = DType::q8_0;
  DType head = DType::q8_0;  // also of the embedding
  int layers = 0;            // 0 = as published; fewer keep the order of layer types
};

/// Files that model::bind_model takes. Each tensor's bytes are made when it is asked for; types share 320 MiB each.
model::ModelFiles synthetic_model(const SyntheticOptions& options);

/// `bytes` of whole blocks of `type`: every value finite and small.
std::vector<std::byte> synthetic_blocks(DType type, std::size_t bytes);

}  // namespace heirloom::tools
