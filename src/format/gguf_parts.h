// GGUF models that were cut into several files (llama.cpp's gguf-split): NAME-00001-of-00003.gguf and so on.
// The first file has the metadata, every file has some of the tensors.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/gguf.h"

namespace heirloom {

/// The tensors of the model that `file` begins: `file` itself for a whole file, or all its parts as one
/// source when its key split.count is above 1. Throws Error{bad_file} when `file` is not the first part
/// (naming the one to open), when a part is missing (naming it), is a part of something else, repeats a
/// tensor, or when the parts together have too few tensors.
std::shared_ptr<const TensorSource> gguf_tensors(const std::shared_ptr<const GgufFile>& file);

class GgufParts : public TensorSource {
 public:
  /// Use gguf_tensors. `first` has split.count > 1.
  explicit GgufParts(std::shared_ptr<const GgufFile> first);

  const TensorView* find(std::string_view name) const override;
  const std::vector<std::string>& names() const override { return names_; }
  void release(const TensorView& tensor) const noexcept override;
  const std::filesystem::path& path() const override { return parts_.front()->path(); }

 private:
  void add(std::shared_ptr<const GgufFile> part);

  std::vector<std::shared_ptr<const GgufFile>> parts_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, const GgufFile*> owner_;
};

}  // namespace heirloom
