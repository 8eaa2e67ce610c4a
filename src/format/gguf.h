// GGUF files (versions 2 and 3, little-endian): header, metadata and tensor table, every count, offset,
// length and product checked against the file before it is used. What a model makes of keys and names is the
// model layer's business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "format/gguf_metadata.h"
#include "format/tensor_view.h"

namespace heirloom {

class GgufFile : public TensorSource {
 public:
  /// Opens and checks the whole table. Throws Error{bad_file} naming file, offset and field.
  explicit GgufFile(const std::filesystem::path& path);

  const GgufMetadata& metadata() const { return metadata_; }
  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const { return alignment_; }

  const TensorView* find(std::string_view name) const override;
  const std::vector<std::string>& names() const override { return names_; }
  void release(const TensorView& tensor) const noexcept override;
  const std::filesystem::path& path() const override { return file_.path(); }

  /// The type's name as the format spells it ("Q4_K", "IQ2_XS"), also for unsupported types; empty if there
  /// is no such tensor.
  std::string_view type_name(std::string_view name) const;

 private:
  struct Tensor {
    TensorView view;  // view.type and data mean nothing while `type->type` is empty
    const GgmlType* type;
    std::uint64_t offset;  // from the start of the data section
    std::uint64_t bytes;
  };

  void read_tensor_info(ByteReader& reader, std::uint64_t index);
  void place_tensors(const ByteReader& reader);

  MappedFile file_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 32;
  GgufMetadata metadata_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace heirloom
