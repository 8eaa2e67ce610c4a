#include "engine/state_pool.h"

#include <algorithm>

#include "base/check.h"

namespace heirloom::engine {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSlabBytes = std::size_t{4} << 20;  // small pages are allocated several at a time

std::size_t aligned(std::size_t bytes) { return std::max((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment); }

}  // namespace

StatePool::StatePool(ops::Backend& backend, const ops::StateShape& shape)
    : backend_(backend),
      shape_(shape),
      page_bytes_(aligned(shape.page_bytes())),
      state_bytes_(aligned(shape.conv_floats() * sizeof(float)) + aligned(shape.recurrent_floats() * sizeof(float))) {}

StatePool::~StatePool() { HEIRLOOM_CHECK(pages_.outstanding == 0 && states_.outstanding == 0); }

/// With list.mutex held.
ops::Buffer& StatePool::add_slab(FreeList& list, std::size_t item_bytes) {
  const std::size_t count = std::clamp<std::size_t>(kSlabBytes / item_bytes, 1, 64);
  ops::Buffer slab = backend_.make_buffer(count * item_bytes);
  for (std::size_t i = count; i-- > 0;) list.items.push_back(static_cast<std::byte*>(slab.data()) + i * item_bytes);
  return slabs_.emplace_back(std::move(slab));
}

bool StatePool::make_ready(std::uint64_t ready_bytes, std::uint64_t most_bytes) {
  if (!backend_.is_host_memory() || bytes_reserved() >= most_bytes) return false;
  // A request leaves several states and shares its pages among them.
  const auto grow = [&](FreeList& list, std::size_t item_bytes, std::uint64_t ready) {
    const std::scoped_lock lock(list.mutex);
    if (list.items.size() * item_bytes >= ready) return false;
    ops::Buffer& slab = add_slab(list, item_bytes);
    backend_.zero(slab.data(), slab.bytes());
    return true;
  };
  return grow(states_, state_bytes_, ready_bytes / 4 * 3) || grow(pages_, page_bytes_, ready_bytes / 4);
}

void* StatePool::take(FreeList& list, std::size_t item_bytes) {
  const std::scoped_lock lock(list.mutex);
  if (list.items.empty()) add_slab(list, item_bytes);
  void* item = list.items.back();
  list.items.pop_back();
  ++list.outstanding;
  return item;
}

void StatePool::give_back(FreeList& list, void* item) {
  const std::scoped_lock lock(list.mutex);
  list.items.push_back(item);
  --list.outstanding;
}

PageRef StatePool::new_page() {
  auto* data = static_cast<std::byte*>(take(pages_, page_bytes_));
  return PageRef(new Page{data}, [this](Page* page) {
    give_back(pages_, page->data);
    delete page;
  });
}

StateRef StatePool::new_state() {
  auto* data = static_cast<std::byte*>(take(states_, state_bytes_));
  auto* recurrent = reinterpret_cast<float*>(data + aligned(shape_.conv_floats() * sizeof(float)));
  return StateRef(new StateBlock{reinterpret_cast<float*>(data), recurrent}, [this](StateBlock* block) {
    give_back(states_, block->conv);
    delete block;
  });
}

std::uint64_t StatePool::bytes_in_use() const {
  std::uint64_t bytes = 0;
  {
    const std::scoped_lock lock(pages_.mutex);
    bytes += pages_.outstanding * page_bytes_;
  }
  const std::scoped_lock lock(states_.mutex);
  return bytes + states_.outstanding * state_bytes_;
}

std::uint64_t StatePool::bytes_reserved() const {
  std::uint64_t bytes = 0;
  for (const ops::Buffer& slab : slabs_) bytes += slab.bytes();
  return bytes;
}

}  // namespace heirloom::engine
