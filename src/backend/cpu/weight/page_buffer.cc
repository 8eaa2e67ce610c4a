#include "backend/cpu/weight/page_buffer.h"

#include <sys/mman.h>

#include "base/check.h"

namespace heirloom::cpu {

PageBuffer::PageBuffer(std::size_t bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  // A mapping that is not aligned to huge pages would lose two of them: map more, and give the ends back.
  const std::size_t extra = bytes >= kHugePage ? kHugePage : 0;
  void* mapped = mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    fail(ErrorKind::does_not_fit, "found no {} bytes of memory for a weight; close other programs or use a smaller file", bytes);
  }
  auto* begin = static_cast<std::byte*>(mapped);
  if (extra != 0) {
    const std::size_t front = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
    if (front != 0) munmap(begin, front);
    constexpr std::size_t kPage = 4096;
    const std::size_t used = (bytes + kPage - 1) / kPage * kPage;
    std::byte* end = begin + front + used;
    std::byte* mapped_end = begin + (bytes + extra + kPage - 1) / kPage * kPage;
    if (end < mapped_end) munmap(end, static_cast<std::size_t>(mapped_end - end));
    begin += front;
    madvise(begin, used, MADV_HUGEPAGE);  // advice: an OS without it serves small pages
  }
  data_ = begin;
  bytes_ = bytes;
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace heirloom::cpu
