// A pruned model as a Hugging Face folder. Of a folder: its tensors under their own names, byte for byte, fewer experts, and a
// config that says so. Of a GGUF file: see gguf_folder.h.
#pragma once

#include <cstdint>
#include <filesystem>

#include "model/model_files.h"
#include "model/tensor_export.h"
#include "tools/folder_writer.h"
#include "tools/prune.h"

namespace heirloom::tools {

/// Error{usage} if `output` exists or `options` ask for what only a GGUF file can have: a type, a vision part elsewhere or none. To be
/// asked before the work begins.
void check_folder_output(const std::filesystem::path& output, const PruneOptions& options);

/// Writes the folder beside its name and renames it when all of it is on disk; returns the bytes of its weights. Draft layers
/// (mtp.*) are left out: their experts are not calibrated. `progress` may throw to stop. Throws as OutputFile does.
std::uint64_t write_pruned_folder(const model::ModelFiles& files, const std::filesystem::path& output,
                                  const model::ExpertSelection& kept, int threads, const WriteProgress& progress);

}  // namespace heirloom::tools
