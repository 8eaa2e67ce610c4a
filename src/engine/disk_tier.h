// Snapshots in a folder, written and read by a thread of its own: they survive a restart and a kill at any moment. Owns
// files, the folder's budget and the thread; file bytes are disk_record.h's, which snapshots go to disk prefix_cache.h's.
//
// One file per 64-token KV page, named by a hash of the whole prefix up to its end, shared by all snapshots above it; one
// file per snapshot with everything else. Several processes may use one folder: names are content, files appear by
// rename, and a file that another process removed is a miss.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/disk_record.h"
#include "engine/session_state.h"
#include "engine/snapshot_store.h"

namespace heirloom::engine {

/// A snapshot's bytes in host memory.
struct HostState {
  std::int64_t position = 0;
  std::vector<std::byte> conv, recurrent, logits;
  std::vector<std::byte> tail;                // used slots of the partly filled page: strips of [slots, head_dim]
  std::vector<std::vector<std::byte>> pages;  // full pages; an empty one is on disk already (when writing)
  std::vector<std::uint64_t> histories;       // of the full pages, then of the state; empty = all 0
};

/// A read in progress.
struct DiskLoad {
  std::vector<Symbol> symbols;
  std::atomic<bool> done{false};
  std::optional<HostState> state;  // once done; nullopt = unusable, computed cold
};

class DiskTier {
 public:
  struct Options {
    std::filesystem::path folder;      // each model has its own folder inside
    std::uint64_t budget_bytes = 0;    // of all of them
    Key128 model{};                    // weights, numerics and plan
    ops::StateShape shape;
    std::size_t max_logits = 0;        // vocab_size
    std::function<void()> on_event;    // a load is done or an event is there; any thread
  };
  struct Found {
    std::vector<Symbol> symbols;
    DiskCopy copy;
    SnapshotKind kind = SnapshotKind::block;
    bool lost = false;  // no longer usable
    std::vector<std::uint64_t> histories;  // from scan: of the pages, as in HostState
  };

  /// Makes the folder and removes what dead processes left half-written. A folder that cannot be used is one warning.
  explicit DiskTier(Options options);
  /// Finishes the writes that are queued.
  ~DiskTier();

  /// The usable snapshots that are there. Damaged and foreign files are one warning each.
  std::vector<Found> scan();

  /// Whether a page of this prefix is known to be on disk.
  bool has_page(const Key128& key) const;
  /// Writes in the background. `keys` of its pages; `source` must be safe to call on the disk thread; `pinned_bytes` is what it
  /// keeps alive. When more than 256 MiB (or four snapshots) wait for a slow disk, the oldest are dropped.
  void write(std::vector<Symbol> symbols, std::vector<Key128> keys, std::function<HostState()> source, SnapshotKind kind,
             std::uint64_t pinned_bytes);
  bool writable() const { return writable_; }
  std::shared_ptr<DiskLoad> load(std::vector<Symbol> symbols, const DiskCopy& copy);
  /// What has changed on disk since the last call.
  std::vector<Found> take_events();

  std::uint64_t bytes() const { return bytes_; }

  /// Keys of all full pages of a prefix. `histories`: as HostState's.
  std::vector<Key128> page_keys(std::span<const Symbol> symbols, std::span<const std::uint64_t> histories) const;

 private:
  struct WriteJob {
    std::vector<Symbol> symbols;
    std::vector<Key128> keys;
    std::function<HostState()> source;
    SnapshotKind kind;
    std::uint64_t pinned_bytes;
  };
  struct LoadJob {
    std::shared_ptr<DiskLoad> load;
    std::string file;
  };
  void run();
  void write_now(const WriteJob& job);
  void load_now(const LoadJob& job);
  HostState read_state(const LoadJob& job);
  Found read_index(const std::filesystem::path& path) const;
  static std::vector<std::uint64_t> read_histories(const RecordReader& reader, std::size_t position);
  void write_file(const std::filesystem::path& path, const Key128& prefix, std::span<const RecordRegion> regions);
  std::vector<std::pair<std::filesystem::path, std::uint64_t>> other_models() const;
  void trim(std::uint64_t room, std::span<const Key128> keep);
  void remove_leftovers();
  void stop_writing(const std::string& reason);
  std::filesystem::path page_path(const Key128& key) const { return options_.folder / (hex(key) + ".page"); }

  Options options_;             // folder: of this model
  std::filesystem::path root_;  // what the budget is for
  std::atomic<bool> writable_{true};
  std::atomic<std::uint64_t> bytes_{0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<WriteJob> writes_;
  std::deque<LoadJob> loads_;
  std::vector<Found> events_;
  std::unordered_set<std::string> pages_;  // hex keys known to be on disk
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace heirloom::engine
