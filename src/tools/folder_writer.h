// A Hugging Face folder under construction: small texts, safetensors in shards with their index. Nothing appears under the
// folder's name unless all of it is written; an unfinished folder is removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/tensor_writer.h"

namespace heirloom::tools {

/// Takes the next bytes of a tensor.
using ByteSink = std::function<void(std::span<const std::byte>)>;

struct FolderTensor {
  TensorSpec spec;
  std::uint64_t bytes = 0;
  std::function<void(const ByteSink& sink)> write;  // all `bytes` of it, in pieces of any size
};

using WriteProgress = std::function<void(double fraction, std::string_view what)>;  // may be empty; may throw to stop

class FolderWriter {
 public:
  /// Creates NAME.partial-PID beside `name`. Error{usage} if that is impossible.
  explicit FolderWriter(const std::filesystem::path& name);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  void write_text(const std::string& file, const std::string& text);
  /// Shards of about 4 GB, each tensor asked for once. Throws as OutputFile does.
  void write_tensors(const std::vector<FolderTensor>& tensors, const WriteProgress& progress);
  /// Gives the folder its name.
  void commit();

 private:
  void write_shard(const std::string& file, std::span<const FolderTensor> tensors, const std::function<void(std::uint64_t)>& written);

  std::filesystem::path final_, path_;
  bool done_ = false;
};

}  // namespace heirloom::tools
