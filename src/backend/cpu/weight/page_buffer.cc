#include "backend/cpu/weight/page_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>

#include "base/check.h"
#include "base/log.h"
#include "base/numa.h"

namespace heirloom::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kShared = std::size_t{64} << 20;  // a mapping for several buffers; untouched pages of it cost nothing

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// A mapping of whole, aligned huge pages: it is made too large, and the ends are given back.
std::shared_ptr<std::byte> map_pages(std::size_t bytes) {
  const std::size_t size = round_up(bytes, kHugePage);
  void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    fail(ErrorKind::does_not_fit, "found no {} bytes of memory for a weight; close other programs or use a smaller file", bytes);
  }
  auto* first = static_cast<std::byte*>(mapped);
  const std::size_t front = round_up(reinterpret_cast<std::uintptr_t>(first), kHugePage) - reinterpret_cast<std::uintptr_t>(first);
  std::byte* begin = first + front;
  if (front != 0) munmap(first, front);
  if (front != kHugePage) munmap(begin + size, kHugePage - front);
  madvise(begin, size, MADV_HUGEPAGE);  // advice: an OS without it serves small pages
  return {begin, [size](std::byte* p) { munmap(p, size); }};
}

void interleave(std::byte* data, std::size_t bytes) {
  static const std::vector<int> nodes = memory_nodes();
  static std::once_flag told;
  if (nodes.size() < 2 || interleave_pages(data, round_up(bytes, kHugePage), nodes)) return;
  std::call_once(told, [] {
    log::warning("the system refuses to spread memory over its {} nodes (mbind): experts lie where they were packed, and copies from one node "
                 "have its bandwidth alone; numactl --interleave=all does the same from outside", nodes.size());
  });
}

// The shared mapping that is being filled.
std::mutex g_mutex;
std::weak_ptr<std::byte> g_open;
std::size_t g_used = 0;

}  // namespace

PageBuffer::PageBuffer(std::size_t bytes, bool interleaved) {
  if (bytes == 0) return;
  bytes_ = bytes;
  if (bytes >= (interleaved ? kHugePage : kShared / 2)) {
    mapping_ = map_pages(bytes);
    data_ = mapping_.get();
    if (interleaved) interleave(data_, bytes);
    return;
  }
  const std::lock_guard lock(g_mutex);
  mapping_ = g_open.lock();
  if (mapping_ == nullptr || g_used + bytes > kShared) {
    mapping_ = map_pages(kShared);
    g_open = mapping_;
    g_used = 0;
  }
  data_ = mapping_.get() + g_used;
  g_used += round_up(bytes, 64);
}

}  // namespace heirloom::cpu
