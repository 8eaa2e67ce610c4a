// The identity that snapshots on disk are tied to: exact weights, the arithmetic that made them, their layout.
#pragma once

#include "engine/disk_record.h"
#include "heirloom/engine.h"
#include "model/model_files.h"
#include "ops/backend.h"

namespace heirloom::engine {

/// Hash of names, types, shapes and bytes of all weights (of files above 2 GiB: 4 KiB in each MiB and the end of every
/// tensor), the arithmetic of the backend, the state's geometry and the version of this program's arithmetic.
/// `options` are part of the arithmetic where they choose kernels.
Key128 model_key(const model::ModelFiles& files, const ops::Backend& backend, const EngineOptions& options,
                 const ops::StateShape& shape);

}  // namespace heirloom::engine
