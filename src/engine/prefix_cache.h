// What the scheduler asks of the prefix cache: where a prompt can start, at which positions its prefill should leave
// snapshots, and to keep them. Owns the policy of positions (docs/state.md) and the log line for each miss; memory and
// eviction are snapshot_store.h's.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/disk_tier.h"
#include "engine/prompt.h"
#include "engine/snapshot_store.h"

namespace heirloom::engine {

struct PlannedSnapshot {
  std::int64_t position = 0;
  SnapshotKind kind = SnapshotKind::block;
};

/// Tokens between block snapshots: the smallest of 64, 128, ... 4096 for which copying a state costs at most 2 % of the prefill
/// in between, on a machine with much arithmetic for its memory bandwidth. Follows from the model's shape alone, so that
/// equal requests find equal snapshots on every machine. `token_operations` of one prompt token; 0 = unknown.
std::int64_t block_step_for(std::size_t state_bytes, double token_operations);

/// Used by the engine's thread only.
class PrefixCache {
 public:
  struct Options {
    std::uint64_t memory_bytes = 0;                             // 0 = nothing in memory
    std::filesystem::path disk_folder;                          // empty = nothing on disk
    std::uint64_t disk_bytes = 0;
    Key128 model{};                                             // weights, numerics and plan: what disk copies are tied to
    std::size_t vocab_size = 0;
    std::int64_t block_step = 64;                               // tokens between block snapshots; see block_step_for
    double token_operations = 0;                                // of prefill: what a token costs to compute again
    std::int64_t fixed_step = 0;                                // fixed_steps.h; 0 = the backend is exact in any step
    std::function<std::string(std::int32_t)> token_text;        // for the debug lines; may be empty
    std::function<void()> on_event;                             // poll is worth a call; any thread
  };
  struct Start {
    SnapshotRef snapshot;               // null: from the beginning, or see loading
    std::shared_ptr<DiskLoad> loading;  // a better one comes from disk: call again_after_load when it is done
    std::int64_t fork = 0;              // where the prompt leaves the known paths, if well past the snapshot; else 0
  };

  /// Reads the index of the disk folder, if there is one.
  PrefixCache(StatePool& pool, Options options);

  bool enabled() const { return options_.memory_bytes > 0 || disk_; }
  /// Finds the deepest usable state and logs, at debug level, where the prefix first differed.
  Start start(const Prompt& prompt);
  /// As start, after `start.loading` is done.
  Start again_after_load(const Prompt& prompt, const Start& start);
  /// Positions after `start` at which to leave a snapshot, ascending, the prompt's end last.
  std::vector<PlannedSnapshot> plan(const Prompt& prompt, const Start& start) const;
  /// Whether a snapshot of this prefix would add something.
  bool wants(std::span<const Symbol> prefix, bool logits) const;
  void keep(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind);

  /// Small jobs between steps: notes what the disk thread has done, copies one waiting snapshot out of device memory (all
  /// of them if `idle`).
  void poll(bool idle);

  /// Tokens between block snapshots of a prompt this long: Options::block_step, or as many more as half the budget needs.
  std::int64_t block_step(std::int64_t prompt_tokens) const;
  /// Options::fixed_step if there is anything to resume from, else 0.
  std::int64_t fixed_step() const { return enabled() ? options_.fixed_step : 0; }

  SnapshotStore& store() { return store_; }
  const SnapshotStore& store() const { return store_; }
  std::uint64_t disk_bytes() const { return disk_ ? disk_->bytes() : 0; }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  struct Outgoing {
    std::vector<Symbol> symbols;
    std::vector<Key128> keys;  // of its pages
    SnapshotRef snapshot;
    SnapshotKind kind;
  };

  void log_start(const Prompt& prompt, const SnapshotStore::Hit& hit, std::int64_t cached) const;
  bool extends(const CacheEntry& entry) const;
  bool worth_loading(const CacheEntry& entry, std::int64_t in_memory) const;
  void write_to_disk(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind);
  void send(Outgoing outgoing);

  StatePool& pool_;
  Options options_;
  SnapshotStore store_;
  std::optional<DiskTier> disk_;
  std::deque<Outgoing> outgoing_;  // in device memory, for the disk
  std::uint64_t hits_ = 0, misses_ = 0;
};

}  // namespace heirloom::engine
