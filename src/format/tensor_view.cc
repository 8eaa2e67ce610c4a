#include "format/tensor_view.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/printable.h"

namespace heirloom {

const TensorView& TensorSource::require(std::string_view name) const {
  if (const TensorView* tensor = find(name)) return *tensor;
  fail(ErrorKind::bad_file, "{}: tensor {} is missing", path().string(), printable(name));
}

std::string shape_string(std::span<const std::uint64_t> shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

std::optional<std::uint64_t> checked_tensor_bytes(std::uint64_t block_size, std::uint64_t block_bytes,
                                                  std::span<const std::uint64_t> shape) {
  constexpr auto kLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::uint64_t cols = shape.empty() ? 1 : shape.back();
  if (cols % block_size != 0) return std::nullopt;
  std::uint64_t elements = 1;
  bool empty = false;
  for (const std::uint64_t dim : shape) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(elements, std::max<std::uint64_t>(dim, 1), &elements) || elements > kLimit) {
      return std::nullopt;
    }
  }
  std::uint64_t bytes = 0;
  const std::uint64_t blocks = std::max<std::uint64_t>(elements / block_size, 1);
  if (__builtin_mul_overflow(blocks, block_bytes, &bytes) || bytes > kLimit) return std::nullopt;
  return empty ? 0 : bytes;
}

}  // namespace heirloom
