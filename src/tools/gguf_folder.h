// A GGUF file's model as a Hugging Face folder: the reverse of what `quantize` does with one. Tensors get their published names
// and values (norms minus one, A as a logarithm, value heads grouped, gate and up of all experts stacked, both frames of the
// patch embedding in one); config.json, tokenizer and processor settings are made from the file's keys.
#pragma once

#include <cstdint>

#include "model/model_files.h"
#include "model/tensor_export.h"
#include "tools/folder_writer.h"

namespace heirloom::tools {

/// Writes all files of the folder, without committing it; returns the bytes of its weights. Only for mixture-of-experts models.
/// Float tensors keep their type, quantised ones become bfloat16. A few rows at a time are in memory. Error{bad_file} if the
/// file has no usable tokenizer.
std::uint64_t write_folder_of_gguf(const model::ModelFiles& files, const model::ExpertSelection& kept, int threads,
                                   FolderWriter& folder, const WriteProgress& progress);

}  // namespace heirloom::tools
