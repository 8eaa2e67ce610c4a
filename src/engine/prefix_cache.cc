#include "engine/prefix_cache.h"

#include <algorithm>
#include <map>

#include "base/log.h"
#include "engine/fixed_steps.h"
#include "engine/host_state.h"

namespace heirloom::engine {
namespace {

constexpr std::int64_t kSmallestStep = 64;
constexpr std::int64_t kLargestStep = 4096;
constexpr double kCopyShare = 0.02;
// Operations that a machine does while it moves a byte of memory, at most: measured prefill reaches 9 on two CPU cores with
// AMX and 22 on an H200. And while it reads a byte of a snapshot from a slow SSD, checks and unpacks it (0.3 GB/s).
constexpr double kOperationsPerByte = 32;
constexpr double kOperationsPerDiskByte = 1000;
constexpr std::int64_t kDiskStep = 512;
constexpr std::int64_t kForkTokens = 16;  // a fork snapshot that saves fewer is not worth its bytes

}  // namespace

std::int64_t block_step_for(std::size_t state_bytes, double token_operations) {
  std::int64_t step = kSmallestStep;
  const double copy = 2 * kOperationsPerByte * static_cast<double>(state_bytes);  // read and written
  while (token_operations > 0 && step < kLargestStep && copy > kCopyShare * token_operations * static_cast<double>(step)) step *= 2;
  return step;
}

PrefixCache::PrefixCache(StatePool& pool, Options options)
    : pool_(pool), options_(std::move(options)), store_(pool, options_.memory_bytes) {
  if (options_.disk_folder.empty()) return;
  DiskTier::Options disk;
  disk.folder = options_.disk_folder;
  disk.budget_bytes = options_.disk_bytes;
  disk.model = options_.model;
  disk.shape = pool.shape();
  disk.max_logits = options_.vocab_size;
  disk.on_event = options_.on_event;
  disk_.emplace(std::move(disk));
  for (const DiskTier::Found& found : disk_->scan()) store_.add_disk(found.symbols, found.copy, found.kind);
}

std::int64_t PrefixCache::block_step(std::int64_t prompt_tokens) const {
  std::int64_t step = std::max(options_.block_step, options_.fixed_step);
  if (options_.memory_bytes == 0) return step;
  // More block snapshots of one prompt than half the budget holds would only evict each other.
  const auto affordable = std::max<std::int64_t>(
      4, static_cast<std::int64_t>(options_.memory_bytes / 2 / std::max<std::size_t>(pool_.state_bytes(), 1)));
  while (step < kLargestStep && prompt_tokens / step > affordable) step *= 2;
  return step;
}

/// Whether a longer prompt may go on from this state. With fixed steps: where a step ends, and at the end of an answer, from
/// where the session itself would have gone on.
bool PrefixCache::extends(const CacheEntry& entry) const {
  const std::int64_t depth = entry.node->depth;
  return options_.fixed_step == 0 || entry.kind == SnapshotKind::turn_end ||
         fixed_end_at_or_below(depth, options_.fixed_step) == depth;
}

PrefixCache::Start PrefixCache::start(const Prompt& prompt) {
  Start start;
  if (!enabled()) return start;
  poll(false);
  const SnapshotStore::Hit hit = store_.find(prompt.symbols, [this](const CacheEntry& entry) { return extends(entry); });
  if (hit.in_memory != nullptr) start.snapshot = hit.in_memory->memory;
  std::int64_t cached = start.snapshot ? start.snapshot->position : 0;
  if (hit.deepest != nullptr && !hit.deepest->memory && worth_loading(*hit.deepest, cached)) {
    cached = hit.deepest->node->depth;
    start.loading = disk_->load(PrefixIndex::path(*hit.deepest->node), *hit.deepest->disk);
  }
  if (hit.known_length >= cached + kForkTokens && hit.known_length < prompt.size()) start.fork = hit.known_length;
  ++(cached > 0 ? hits_ : misses_);
  log_start(prompt, hit, cached);
  return start;
}

PrefixCache::Start PrefixCache::again_after_load(const Prompt& prompt, const Start& start) {
  const DiskLoad& load = *start.loading;
  if (!load.state) return this->start(prompt);  // its entry is gone by now: the next best
  Start loaded;
  loaded.snapshot = copy_from_host(pool_, *load.state);
  loaded.fork = start.fork;
  store_.insert(load.symbols, loaded.snapshot, SnapshotKind::block);
  return loaded;
}

/// Reading costs time too: a snapshot in memory that is a few tokens shallower can be the quicker start.
bool PrefixCache::worth_loading(const CacheEntry& entry, std::int64_t in_memory) const {
  if (!disk_ || !entry.disk) return false;
  const double bytes = static_cast<double>(pool_.state_bytes()) +
                       static_cast<double>(pool_.page_bytes()) * static_cast<double>(entry.node->depth) / 64;
  return in_memory == 0 ||
         static_cast<double>(entry.node->depth - in_memory) * options_.token_operations > bytes * kOperationsPerDiskByte;
}

void PrefixCache::log_start(const Prompt& prompt, const SnapshotStore::Hit& hit, std::int64_t cached) const {
  if (log::level() > log::Level::debug) return;
  const auto show = [&](std::optional<Symbol> symbol) -> std::string {
    if (!symbol) return "the end";
    if ((*symbol & kImageSymbolBit) != 0) return "picture";
    if (!options_.token_text) return fmt::format("token {}", *symbol);
    return fmt::format("{:?}", options_.token_text(static_cast<std::int32_t>(*symbol)));
  };
  std::string where;
  if (hit.known_length < prompt.size()) {
    const auto at = static_cast<std::size_t>(hit.known_length);
    where = fmt::format("; first differs at token {}: {} here, {} in the cache", hit.known_length,
                        show(prompt.symbols[at]), hit.known_next ? show(hit.known_next) : std::string("nothing"));
  }
  log::debug("prefix cache: {} of {} tokens from a snapshot{}", cached, prompt.size(), where);
}

std::vector<PlannedSnapshot> PrefixCache::plan(const Prompt& prompt, const Start& start) const {
  if (!enabled()) return {};
  const std::int64_t from = start.snapshot ? start.snapshot->position : 0;
  std::map<std::int64_t, SnapshotKind> places;
  const auto place = [&](std::int64_t position, SnapshotKind kind) {
    if (options_.fixed_step > 0 && kind != SnapshotKind::prompt_end) {
      position = fixed_end_at_or_below(position, options_.fixed_step);
    }
    if (position <= from || position > prompt.size()) return;
    const auto [at, added] = places.emplace(position, kind);
    if (!added) at->second = std::max(at->second, kind);
  };
  const std::int64_t step = block_step(prompt.size());
  for (std::int64_t p = kSmallestStep; p < std::min(step, prompt.size()); p *= 2) place(p, SnapshotKind::block);
  for (std::int64_t p = from / step * step + step; p < prompt.size(); p += step) place(p, SnapshotKind::block);
  for (const std::int64_t p : prompt.boundaries) place(p, SnapshotKind::boundary);
  if (start.fork > 0) place(start.fork, SnapshotKind::fork);
  place(prompt.size(), SnapshotKind::prompt_end);
  std::vector<PlannedSnapshot> planned;
  for (const auto& [position, kind] : places) planned.push_back({position, kind});
  return planned;
}

bool PrefixCache::wants(std::span<const Symbol> prefix, bool logits) const {
  if (!enabled()) return false;
  const CacheEntry* entry = store_.entry_of(prefix);
  const bool in_memory = entry != nullptr && entry->memory && (!logits || !entry->memory->logits.empty());
  const bool on_disk = entry != nullptr && entry->disk && (!logits || entry->disk->has_logits);
  return (options_.memory_bytes > 0 && !in_memory) || (options_.memory_bytes == 0 && !on_disk);
}

void PrefixCache::keep(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind) {
  if (!enabled()) return;
  store_.insert(prefix, snapshot, kind);
  write_to_disk(prefix, snapshot, kind);
}

void PrefixCache::write_to_disk(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind) {
  if (!disk_ || !disk_->writable()) return;
  // Pages are shared between files, recurrent states are not: of the many block snapshots every few go to disk.
  if (kind == SnapshotKind::block && snapshot->position % kDiskStep != 0) return;
  const CacheEntry* entry = store_.entry_of(prefix);
  if (entry != nullptr && entry->disk && (entry->disk->has_logits || snapshot->logits.empty())) return;
  Outgoing outgoing{{prefix.begin(), prefix.end()}, disk_->page_keys(prefix, histories_of(*snapshot)), snapshot, kind};
  if (!pool_.backend().is_host_memory()) {
    outgoing_.push_back(std::move(outgoing));
    return;
  }
  // The disk thread reads the state where it is. It lets go of it before the pool can end: the tier is destroyed first.
  auto source = [&pool = pool_, disk = &*disk_, snapshot, keys = outgoing.keys] {
    return copy_to_host(pool, *snapshot, [&](std::size_t i) { return disk->has_page(keys[i]); });
  };
  disk_->write(std::move(outgoing.symbols), std::move(outgoing.keys), std::move(source), kind, pool_.state_bytes());
}

void PrefixCache::send(Outgoing outgoing) {
  auto state = std::make_shared<HostState>(
      copy_to_host(pool_, *outgoing.snapshot, [&](std::size_t i) { return disk_->has_page(outgoing.keys[i]); }));
  disk_->write(std::move(outgoing.symbols), std::move(outgoing.keys), [state] { return std::move(*state); }, outgoing.kind,
               pool_.state_bytes());
}

void PrefixCache::poll(bool idle) {
  if (!disk_) return;
  for (const DiskTier::Found& event : disk_->take_events()) {
    if (event.lost) {
      store_.drop_disk(event.symbols);
    } else {
      store_.add_disk(event.symbols, event.copy, event.kind);
    }
  }
  while (!outgoing_.empty()) {
    send(std::move(outgoing_.front()));
    outgoing_.pop_front();
    if (!idle) break;
  }
}

}  // namespace heirloom::engine
