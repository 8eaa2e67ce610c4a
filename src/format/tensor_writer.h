// Writing weight files one tensor at a time, so that a file larger than memory can be made. GgufWriter and
// SafetensorsWriter give the header; declaring, ordering, padding, progress and the atomic rename are common
// and live here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "format/output_file.h"

namespace heirloom {

/// A tensor to be written; shape row-major, outermost first.
struct TensorSpec {
  std::string name;
  DType type = DType::f32;
  std::vector<std::uint64_t> shape;
};

/// Use: add_tensor for each; begin(); write the data of every tensor in the order begin() returned; finish().
/// Until finish() returns nothing appears under the path; an unfinished writer removes its partial file.
class TensorWriter {
 public:
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  virtual ~TensorWriter() = default;
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  /// Declares a tensor. Throws Error{usage} for what the format cannot hold: a name given twice or too long,
  /// too many dimensions, rows that are not whole blocks, a type it lacks.
  void add_tensor(TensorSpec spec);

  /// Creates the partial file, writes the header, and returns the tensors in the order in which their data
  /// must come.
  const std::vector<TensorSpec>& begin();

  /// Appends data: whole tensors or pieces of any size, padding between tensors is added here. Throws as
  /// OutputFile does.
  void write(std::span<const std::byte> bytes);

  /// Completes the file and gives it its name. Throws Error{internal} if data is missing.
  void finish();

  /// Called from write() after each piece.
  void on_progress(Progress progress) { progress_ = std::move(progress); }

  const std::filesystem::path& path() const { return path_; }

 protected:
  TensorWriter(std::filesystem::path path, std::uint64_t alignment)
      : path_(std::move(path)), alignment_(alignment) {}

  /// Extra rules of the format, and its order of tensors.
  virtual void check(const TensorSpec& spec) const = 0;
  virtual void arrange(std::vector<TensorSpec>& specs) const = 0;
  /// Everything before the data section, padding included. `offsets[i]` is where tensor i's data starts in
  /// that section.
  virtual std::string header(const std::vector<TensorSpec>& specs,
                             const std::vector<std::uint64_t>& offsets) const = 0;

 private:
  void skip_empty_tensors();

  std::filesystem::path path_;
  std::uint64_t alignment_;
  std::vector<TensorSpec> specs_;
  std::vector<std::uint64_t> bytes_;  // of each tensor
  std::set<std::string> names_;
  std::unique_ptr<OutputFile> file_;
  std::size_t current_ = 0;          // tensor being written
  std::uint64_t current_bytes_ = 0;  // of it so far
  std::uint64_t done_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
  Progress progress_;
};

}  // namespace heirloom
