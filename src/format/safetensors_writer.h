// Writes safetensors files as the reference implementation lays them out, so that every reader of the format
// takes them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "format/tensor_view.h"
#include "format/tensor_writer.h"

namespace heirloom {

class SafetensorsWriter : public TensorWriter {
 public:
  /// `metadata` becomes the header's "__metadata__"; transformers wants {"format": "pt"}.
  explicit SafetensorsWriter(std::filesystem::path path, std::map<std::string, std::string> metadata = {})
      : TensorWriter(std::move(path), 1), metadata_(std::move(metadata)) {}

 protected:
  void check(const TensorSpec& spec) const override;
  /// Wider types first, so that each tensor is aligned to its element (torch maps the file and insists on
  /// it).
  void arrange(std::vector<TensorSpec>& specs) const override;
  std::string header(const std::vector<TensorSpec>& specs,
                     const std::vector<std::uint64_t>& offsets) const override;

 private:
  std::map<std::string, std::string> metadata_;
};

/// The whole file at once from tensors in memory or in other mappings. Throws as TensorWriter does.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace heirloom
