// Snapshots kept in memory within a budget of bytes, found by prefix. Owns the entries and the eviction rule; the radix
// tree is prefix_index.h's, the copies on disk are disk_tier.h's (an entry may live on disk only).
//
// Accounting is exact: a KV page counts once however many snapshots share it. Evicted first is what saves the least
// recompute per byte freed: tokens between the snapshot and the next shallower one in memory, times a weight for its kind
// and for how recently it was used, divided by the bytes that only it holds. Regular block snapshots therefore thin out
// evenly under pressure, ends of prompts and turns stay longest.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>

#include "engine/prefix_index.h"
#include "engine/session_state.h"

namespace heirloom::engine {

enum class SnapshotKind : std::uint8_t {
  block,       // at a multiple of the block step during prefill
  fork,        // where a request was seen to leave a known path
  boundary,    // after the system part, before the generation suffix
  prompt_end,  // with the last logits
  turn_end,    // after the answer
};

/// A snapshot's copy on disk, enough to find and judge it without reading the states.
struct DiskCopy {
  std::string file;
  bool has_logits = false;
};

struct CacheEntry {
  PrefixIndex::Node* node = nullptr;
  SnapshotRef memory;             // null: on disk only
  std::optional<DiskCopy> disk;
  SnapshotKind kind = SnapshotKind::block;
  std::uint64_t last_use = 0;     // in lookups

  bool has_logits() const { return memory ? !memory->logits.empty() : disk && disk->has_logits; }
};

/// Used by the engine's thread only.
class SnapshotStore {
 public:
  struct Hit {
    CacheEntry* deepest = nullptr;     // usable, in memory or on disk; null = nothing
    CacheEntry* in_memory = nullptr;   // the deepest usable one in memory
    std::int64_t known_length = 0;     // symbols shared with some known path
    std::optional<Symbol> known_next;  // what that path has there
  };

  SnapshotStore(const StatePool& pool, std::uint64_t budget_bytes) : pool_(pool), budget_bytes_(budget_bytes) {}
  SnapshotStore(const SnapshotStore&) = delete;
  SnapshotStore& operator=(const SnapshotStore&) = delete;
  ~SnapshotStore();

  /// The deepest state below the prompt's end that `extends` allows to go on from, or the one at its end if its logits were
  /// kept. Counts as a use of every snapshot on the way.
  Hit find(std::span<const Symbol> symbols, const std::function<bool(const CacheEntry&)>& extends);
  /// The entry at exactly this prefix, or null.
  const CacheEntry* entry_of(std::span<const Symbol> prefix) const { return find_entry(prefix); }
  /// Keeps a snapshot if the budget allows after evicting what is worth less. Returns the entry, or null if refused.
  CacheEntry* insert(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind);
  /// Notes that a snapshot of this prefix is on disk.
  void add_disk(std::span<const Symbol> prefix, DiskCopy copy, SnapshotKind kind);
  /// The copy on disk is gone or unusable.
  void drop_disk(std::span<const Symbol> prefix);

  std::uint64_t bytes() const;  // of snapshots and paths, never above the budget
  std::uint64_t budget_bytes() const { return budget_bytes_; }
  std::uint64_t evictions() const { return evictions_; }
  std::size_t entries() const { return entries_.size(); }
  const PrefixIndex& index() const { return index_; }

 private:
  CacheEntry* find_entry(std::span<const Symbol> prefix) const;
  CacheEntry& entry_at(PrefixIndex::Node& node, SnapshotKind kind);
  static const CacheEntry* ancestor_in_memory(const PrefixIndex::Node& node);
  static const CacheEntry* descendant_in_memory(const PrefixIndex::Node& node);
  SnapshotRef share_known_pages(const PrefixIndex::Node& node, const SnapshotRef& snapshot) const;
  void hold(CacheEntry& entry, SnapshotRef snapshot);
  void release(CacheEntry& entry);
  void forget(CacheEntry& entry);
  std::uint64_t cost_of(const Snapshot& snapshot) const;
  double worth(const CacheEntry& entry) const;
  bool evict_one(const CacheEntry* keep);

  const StatePool& pool_;
  std::uint64_t budget_bytes_;
  PrefixIndex index_;
  std::unordered_set<CacheEntry*> entries_;  // owned
  std::uint64_t snapshot_bytes_ = 0;
  std::uint64_t lookups_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace heirloom::engine
