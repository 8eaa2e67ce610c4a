// What a model's files say about it, as `heirloom info --json` shows it. Reads headers only.
#pragma once

#include "heirloom/engine.h"
#include "model/model_files.h"

namespace heirloom {

/// Architecture, parameters, bytes, weight types, layers, context, vision, chat template. Error{bad_file} for missing tensors.
Json model_info(const model::ModelFiles& files);

}  // namespace heirloom
