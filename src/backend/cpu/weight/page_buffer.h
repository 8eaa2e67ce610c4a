// Zero-filled memory straight from the OS for weights: huge pages where the OS grants them.
#pragma once

#include <cstddef>
#include <utility>

namespace heirloom::cpu {

class PageBuffer {
 public:
  PageBuffer() = default;
  /// Throws Error{does_not_fit} with the number of bytes.
  explicit PageBuffer(std::size_t bytes);
  PageBuffer(PageBuffer&& other) noexcept { swap(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PageBuffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(PageBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace heirloom::cpu
