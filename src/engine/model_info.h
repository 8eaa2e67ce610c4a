// What a model's files say about it, as `heirloom info --json` shows it. Reads headers only.
#pragma once

#include "heirloom/engine.h"
#include "model/model_files.h"

namespace heirloom {

/// {"name", "path", "architecture", "parameters", "file_bytes", "context_tokens", "layers", "types": {name: {...}}, ...}
Json model_info(const model::ModelFiles& files);

}  // namespace heirloom
