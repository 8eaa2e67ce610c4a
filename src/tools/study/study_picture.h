// A synthetic picture as the towers take it, and the work that it is.
#pragma once

#include "model/model.h"

namespace heirloom::tools {

/// The patches of a `width` x `height` picture after MiniCPM-V-4.6's own preprocessing: an overview, and slices where it is large.
model::VisionInput study_picture(std::uint32_t width, std::uint32_t height);

/// Floating-point operations of the tower's matrix products over `picture` in 16x mode, those of attention left out.
double tower_flops(const model::VisionConfig& config, const model::VisionInput& picture);

}  // namespace heirloom::tools
