// safetensors files and Hugging Face folders of them. The header is read as a stream into the tensor table:
// no document is built, so a hostile header costs no more memory than the tensors it really lists. Names are
// the checkpoint's own; what they mean is the model layer's business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "format/tensor_view.h"

namespace heirloom {

/// One .safetensors file.
class SafetensorsFile : public TensorSource {
 public:
  /// Opens and checks the header: length within the file and 16 MiB, every tensor's dtype, shape
  /// and offsets, no overlap and no gap. Throws Error{bad_file} naming file, field and offset.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const TensorView* find(std::string_view name) const override;
  const std::vector<std::string>& names() const override { return names_; }
  void release(const TensorView& tensor) const noexcept override;
  const std::filesystem::path& path() const override { return file_.path(); }

  /// The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Tensor {
    TensorView view;          // view.type means nothing while `unsupported` is set
    std::string unsupported;  // dtype name of a tensor that find() refuses
  };

  MappedFile file_;
  std::map<std::string, std::string> metadata_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// A Hugging Face checkpoint folder: `model.safetensors`, or `model.safetensors.index.json` with its shards.
class SafetensorsFolder : public TensorSource {
 public:
  /// Opens every shard. Throws Error{bad_file} when the folder has neither file, when a shard is missing (it
  /// is named) or broken, or when the index promises a tensor that its shard lacks.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const TensorView* find(std::string_view name) const override;
  const std::vector<std::string>& names() const override { return names_; }
  void release(const TensorView& tensor) const noexcept override;
  const std::filesystem::path& path() const override { return folder_; }

 private:
  void open_index(const std::filesystem::path& index);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, const SafetensorsFile*> owner_;
};

}  // namespace heirloom
