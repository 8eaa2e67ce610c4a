// The whole state of one token timeline at position n as one value: KV pages of the full-attention layers up to n plus the
// recurrent and conv state of each Gated DeltaNet layer at n. It can be snapshot, forked, restored and rolled back;
// going on from a copy gives the same logits, bit for bit, as going on from the original.
//
// Sharing rule: a page's slots are written once, in order. A snapshot shares all pages of the session, also the partly
// filled last one, because it reads only the slots below its own position; the session goes on appending to that page.
// Whoever starts from a snapshot copies the partly filled page before writing (it has one writer at most).
// The state block is updated in place by every step and is therefore copied.
//
// History: where every step is exact, equal prefixes have equal states. Where bits depend on the steps taken (fixed_steps.h), a
// number tells states apart that came about in other steps than those from the beginning; 0 = in those. Prefix and history
// together determine every bit of a page.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/state_pool.h"
#include "ops/backend.h"

namespace heirloom::engine {

/// Immutable state at a position; shared between the cache, sessions and the disk writer.
struct Snapshot {
  std::int64_t position = 0;
  std::vector<PageRef> pages;  // ceil(position / 64)
  StateRef state;
  std::vector<float> logits;   // [vocab_size] after the last token, where they were kept; else empty
  std::uint64_t history = 0;
};
using SnapshotRef = std::shared_ptr<const Snapshot>;

/// Used by the engine's thread only.
class SessionState {
 public:
  /// Position 0. Error{does_not_fit}.
  explicit SessionState(StatePool& pool);
  /// Continues from a snapshot (copies its state block and, if partly filled, its last page). Error{does_not_fit}.
  SessionState(StatePool& pool, const Snapshot& snapshot);

  std::int64_t position() const { return position_; }
  /// Makes room for `num_rows` more tokens and names the memory. `capture_at`: ascending positions inside the step whose
  /// states are wanted (needs Backend::captures_states). Valid until the next call of a member. Error{does_not_fit}.
  ops::SequenceStep step(std::int32_t first_row, std::int32_t num_rows, std::span<const std::int64_t> capture_at = {});
  /// The step has run: the state is now `num_rows` tokens further. Returns the snapshots at capture_at.
  std::vector<SnapshotRef> advance(std::int32_t num_rows);

  /// Copies the state block, shares the pages.
  SnapshotRef snapshot(std::vector<float> logits = {});
  /// As snapshot, without a copy: the session ends.
  SnapshotRef finish(std::vector<float> logits = {}) &&;
  SessionState fork() { return SessionState(*pool_, *snapshot()); }
  /// The steps from here on are not those from the beginning: `what` says which. Call before step().
  void deviate(std::uint64_t what);

 private:
  std::shared_ptr<Snapshot> share_pages(std::int64_t position, StateRef state, std::vector<float> logits) const;

  StatePool* pool_;
  std::int64_t position_ = 0;
  std::uint64_t history_ = 0;
  std::vector<PageRef> pages_;
  std::vector<std::byte*> page_data_;  // what step() names
  StateRef state_;
  std::vector<ops::StateCapture> captures_;  // of the step being made
  std::vector<StateRef> captured_;           // their memory
};

}  // namespace heirloom::engine
