#include "engine/host_state.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"

namespace heirloom::engine {
namespace {

constexpr std::size_t kPageTokens = ops::StateShape::kPageTokens;

/// Calls visit(offset in the page, offset in the packed tail, bytes) for the used slots of each [64, head_dim] strip.
template <typename Visit>
void for_each_strip(const ops::StateShape& shape, std::size_t used_slots, Visit&& visit) {
  const std::size_t slot_bytes = static_cast<std::size_t>(shape.head_dim) * dtype_info(shape.kv_type).block_bytes;
  const std::size_t strips = static_cast<std::size_t>(shape.num_attention_layers) * 2 * static_cast<std::size_t>(shape.num_kv_heads);
  for (std::size_t i = 0; i < strips; ++i) {
    visit(i * kPageTokens * slot_bytes, i * used_slots * slot_bytes, used_slots * slot_bytes);
  }
}

}  // namespace

std::vector<std::uint64_t> histories_of(const Snapshot& snapshot) {
  if (snapshot.history == 0) return {};  // it only ever leaves 0: then so have all pages
  std::vector<std::uint64_t> histories;
  for (std::size_t i = 0; i < static_cast<std::size_t>(snapshot.position) / kPageTokens; ++i) {
    histories.push_back(snapshot.pages[i]->history);
  }
  histories.push_back(snapshot.history);
  return histories;
}

HostState copy_to_host(const StatePool& pool, const Snapshot& snapshot, const std::function<bool(std::size_t)>& skip_page) {
  const ops::StateShape& shape = pool.shape();
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    if (pool.backend().is_host_memory()) {
      std::memcpy(to, from, bytes);
    } else {
      pool.backend().download(to, from, bytes);
    }
  };
  HostState state;
  state.position = snapshot.position;
  state.histories = histories_of(snapshot);
  state.conv.resize(shape.conv_floats() * sizeof(float));
  state.recurrent.resize(shape.recurrent_floats() * sizeof(float));
  copy(state.conv.data(), snapshot.state->conv, state.conv.size());
  copy(state.recurrent.data(), snapshot.state->recurrent, state.recurrent.size());
  const auto logits = std::as_bytes(std::span(snapshot.logits));
  state.logits.assign(logits.begin(), logits.end());
  const auto position = static_cast<std::size_t>(snapshot.position);
  state.pages.resize(position / kPageTokens);
  for (std::size_t i = 0; i < state.pages.size(); ++i) {
    if (skip_page(i)) continue;
    state.pages[i].resize(shape.page_bytes());
    copy(state.pages[i].data(), snapshot.pages[i]->data, state.pages[i].size());
  }
  const std::size_t used = position % kPageTokens;
  state.tail.resize(shape.page_bytes() / kPageTokens * used);
  if (used == 0) return state;
  for_each_strip(shape, used, [&](std::size_t in_page, std::size_t in_tail, std::size_t bytes) {
    copy(state.tail.data() + in_tail, snapshot.pages.back()->data + in_page, bytes);
  });
  return state;
}

SnapshotRef copy_from_host(StatePool& pool, const HostState& state) {
  const ops::StateShape& shape = pool.shape();
  ops::Backend& backend = pool.backend();
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->position = state.position;
  snapshot->state = pool.new_state();
  backend.upload(snapshot->state->conv, state.conv.data(), state.conv.size());
  backend.upload(snapshot->state->recurrent, state.recurrent.data(), state.recurrent.size());
  snapshot->logits.resize(state.logits.size() / sizeof(float));
  std::ranges::copy(state.logits, std::as_writable_bytes(std::span(snapshot->logits)).begin());
  for (const std::vector<std::byte>& page : state.pages) {
    HEIRLOOM_CHECK(page.size() == shape.page_bytes());
    snapshot->pages.push_back(pool.new_page());
    if (!state.histories.empty()) snapshot->pages.back()->history = state.histories[snapshot->pages.size() - 1];
    backend.upload(snapshot->pages.back()->data, page.data(), page.size());
  }
  if (!state.histories.empty()) snapshot->history = state.histories.back();
  const std::size_t used = static_cast<std::size_t>(state.position) % kPageTokens;
  if (used == 0) return snapshot;
  snapshot->pages.push_back(pool.new_page());
  for_each_strip(shape, used, [&](std::size_t in_page, std::size_t in_tail, std::size_t bytes) {
    backend.upload(snapshot->pages.back()->data + in_page, state.tail.data() + in_tail, bytes);
  });
  return snapshot;
}

}  // namespace heirloom::engine
