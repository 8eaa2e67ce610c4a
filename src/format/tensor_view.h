// What a weight file offers, whatever its format: named, typed, shaped bytes inside a mapping. The model
// layer binds weights through TensorSource and never sees whether a GGUF, a safetensors file or a folder of
// shards is behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace heirloom {

/// One tensor of a file. `data` lies in the file's mapping, lives as long as its TensorSource, has exactly
/// the bytes that type and shape need, and has no guaranteed alignment (safetensors gives none): read it with
/// memcpy or unaligned loads.
struct TensorView {
  std::string name;
  DType type = DType::f32;
  std::vector<std::uint64_t>
      shape;  // row-major, outermost first, for every format (GGUF's ne[] reversed); {} = scalar
  std::span<const std::byte> data;

  /// Elements in all; checked against overflow when the file was opened.
  std::uint64_t elements() const {
    std::uint64_t count = 1;
    for (const std::uint64_t dim : shape) count *= dim;
    return count;
  }
  /// Innermost dimension (1 for a scalar); a multiple of the type's block size.
  std::uint64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  /// Product of all other dimensions.
  std::uint64_t rows() const {
    std::uint64_t count = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
    return count;
  }
};

/// Tensors by name. Thread-safe for reading once open.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// The tensor, or nullptr if the file has none of that name. Throws Error{bad_file} naming the type when
  /// the tensor is there but of a type that is not supported (IQ2_XS, F8_E4M3, ...): such a tensor is refused
  /// when asked for, not when the file is opened.
  virtual const TensorView* find(std::string_view name) const = 0;

  /// Every name, unsupported types included: in file order, or sorted for a folder with an index.
  virtual const std::vector<std::string>& names() const = 0;

  /// Drops the tensor's pages from this process' memory; later reads fetch them from the file again.
  virtual void release(const TensorView& tensor) const noexcept = 0;

  /// The file or folder, for messages.
  virtual const std::filesystem::path& path() const = 0;

  /// As find, but a missing tensor is Error{bad_file} naming file and tensor.
  const TensorView& require(std::string_view name) const;
};

/// "[2, 3]".
std::string shape_string(std::span<const std::uint64_t> shape);

/// Bytes of a tensor of blocks of `block_size` elements in `block_bytes` bytes along the innermost dimension.
/// nullopt if a product passes 2^63 - 1 (counting empty dimensions as 1, so that no partial product can wrap
/// either) or the innermost dimension is not a whole number of blocks.
std::optional<std::uint64_t> checked_tensor_bytes(std::uint64_t block_size, std::uint64_t block_bytes,
                                                  std::span<const std::uint64_t> shape);

}  // namespace heirloom
