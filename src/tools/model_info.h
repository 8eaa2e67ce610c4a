// What a model is, told from its files without loading weights.
#pragma once

#include "base/json.h"
#include "model/model_files.h"

namespace heirloom::tools {

/// `heirloom info --json`: architecture, parameters, bytes, weight types, layers, context, vision, template.
OrderedJson model_info(const model::ModelFiles& files);

}  // namespace heirloom::tools
