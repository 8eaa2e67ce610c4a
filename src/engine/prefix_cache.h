// What the scheduler asks of the prefix cache: where a prompt can start, at which positions its prefill should leave
// snapshots, and to keep them. Owns the policy of positions (docs/state.md) and the log line for each miss; memory and
// eviction are snapshot_store.h's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/prompt.h"
#include "engine/snapshot_store.h"

namespace heirloom::engine {

struct PlannedSnapshot {
  std::int64_t position = 0;
  SnapshotKind kind = SnapshotKind::block;
};

/// Used by the engine's thread only.
class PrefixCache {
 public:
  struct Options {
    std::uint64_t memory_bytes = 0;                             // 0 = off
    bool captures = false;                                      // the backend copies states inside a chunk
    std::function<std::string(std::int32_t)> token_text;        // for the debug lines; may be empty
  };
  struct Start {
    SnapshotRef snapshot;       // null: from the beginning
    std::int64_t fork = 0;      // where the prompt leaves the known paths, if past the snapshot; else 0
  };

  PrefixCache(StatePool& pool, Options options);

  bool enabled() const { return options_.memory_bytes > 0; }
  /// Finds the deepest usable state and logs, at debug level, where the prefix first differed.
  Start start(const Prompt& prompt);
  /// Positions after `from` at which to leave a snapshot, ascending, the prompt's end last.
  std::vector<PlannedSnapshot> plan(const Prompt& prompt, const Start& start) const;
  bool wants(std::span<const Symbol> prefix, bool logits) const { return enabled() && !store_.holds(prefix, logits); }
  void keep(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind);

  /// Measured costs, from which the block step follows: a copy may cost 2 % of the prefill between two snapshots.
  void note_prefill(std::int64_t tokens, double ms);
  void note_copy(double ms);
  std::int64_t block_step(std::int64_t prompt_tokens) const;

  SnapshotStore& store() { return store_; }
  const SnapshotStore& store() const { return store_; }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  void log_start(const Prompt& prompt, const SnapshotStore::Hit& hit, std::int64_t cached) const;

  StatePool& pool_;
  Options options_;
  SnapshotStore store_;
  double prefill_ms_per_token_ = 0, copy_ms_ = 0;  // moving averages
  std::uint64_t hits_ = 0, misses_ = 0;
};

}  // namespace heirloom::engine
