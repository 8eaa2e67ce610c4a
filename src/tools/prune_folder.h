// A pruned model as a Hugging Face folder: the source folder's tensors under their own names, fewer experts, and a config that
// says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "model/model_files.h"
#include "model/tensor_export.h"

namespace heirloom::tools {

/// Error{usage} if the source is no folder, `output` exists, or another weight type is wanted (safetensors keep the
/// source's types). To be asked before the work begins.
void check_folder_output(const model::ModelFiles& files, const std::filesystem::path& output, bool other_type);

/// Writes the folder beside its name and renames it when all of it is on disk; returns the bytes of its weights. Draft layers
/// (mtp.*) are left out: their experts are not calibrated. `progress` may throw to stop. Throws as OutputFile does.
std::uint64_t write_pruned_folder(const model::ModelFiles& files, const std::filesystem::path& output,
                                  const model::ExpertSelection& kept,
                                  const std::function<void(double fraction, std::string_view what)>& progress);

}  // namespace heirloom::tools
