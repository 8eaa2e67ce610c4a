// The vision towers behind one interface: normalised patches in, image features in the language model's space out.
#pragma once

#include <memory>

#include "model/model.h"

namespace heirloom::model {

class WeightReader;

class VisionTower {
 public:
  virtual ~VisionTower() = default;
  virtual VisionOutput encode(const VisionInput& input, Taps* taps) = 0;
  virtual std::uint64_t weight_bytes() const = 0;
};

/// Qwen3.5's tower: Conv3d patches as one GEMM, bilinear position table, 2-D rotary attention, 2x2 patch merger.
std::unique_ptr<VisionTower> make_qwen_vision_tower(ops::Backend& backend, const VisionConfig& config,
                                                    const WeightReader& weights);
/// MiniCPM-V-4.6's tower: SigLIP2 with a 2x2 window-attention merger inside (16x mode) and an MLP merger.
std::unique_ptr<VisionTower> make_minicpm_vision_tower(ops::Backend& backend, const VisionConfig& config,
                                                       const WeightReader& weights);

}  // namespace heirloom::model
