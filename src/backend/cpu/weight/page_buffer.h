// Zero-filled memory for weights on huge pages where the OS grants them. Small buffers share mappings: a weight of less than
// 2 MiB would get no huge page of its own, and on 4 KiB pages one core reads 11 GB/s where it reads 14.6 on huge ones (q4_0,
// one row, Xeon with AVX-512).
#pragma once

#include <cstddef>
#include <memory>

namespace heirloom::cpu {

class PageBuffer {
 public:
  PageBuffer() = default;
  /// 64-byte aligned. `interleaved`: the pages of 2 MiB and more are spread over the machine's memory nodes (base/numa.h), where it has
  /// several; a refusal is one warning. Throws Error{does_not_fit} with the number of bytes. Thread-safe.
  explicit PageBuffer(std::size_t bytes, bool interleaved = false);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::byte> mapping_;  // kept by every buffer inside it
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace heirloom::cpu
