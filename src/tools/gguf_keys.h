// The metadata of a GGUF file for a model of ours: the keys that llama.cpp's converter writes, and our own (heirloom.*) for
// what it has no key for.
#pragma once

#include "format/gguf_writer.h"
#include "model/model_files.h"

namespace heirloom::tools {

/// Architecture, tokenizer, template. A GGUF source's keys are copied, a Hugging Face folder's made. `file_type` as in
/// general.file_type.
void write_text_keys(const model::ModelFiles& files, std::uint32_t file_type, GgufWriter& writer);

/// clip.* keys and the processor's settings. No-op without a vision part. `own_file`: as an mmproj file of its own
/// (general.architecture = clip).
void write_vision_keys(const model::ModelFiles& files, bool own_file, GgufWriter& writer);

/// llama.cpp's number for a file mostly of this type.
std::uint32_t gguf_file_type(DType type);

}  // namespace heirloom::tools
