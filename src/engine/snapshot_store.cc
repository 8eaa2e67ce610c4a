#include "engine/snapshot_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace heirloom::engine {
namespace {

constexpr std::int64_t kPageTokens = ops::StateShape::kPageTokens;
constexpr std::uint64_t kEntryBytes = 512;  // entry, node and page references, roughly

double weight(SnapshotKind kind) {
  switch (kind) {
    case SnapshotKind::block: return 1;
    case SnapshotKind::fork: return 2;
    case SnapshotKind::boundary:
    case SnapshotKind::prompt_end:
    case SnapshotKind::turn_end: return 8;
  }
  return 1;
}

}  // namespace

SnapshotStore::~SnapshotStore() {
  for (CacheEntry* entry : entries_) delete entry;
}

SnapshotStore::Hit SnapshotStore::find(std::span<const Symbol> symbols,
                                       const std::function<bool(const CacheEntry&)>& extends) {
  ++lookups_;
  const PrefixIndex::Match match = index_.match(symbols);
  Hit hit{nullptr, nullptr, match.length, match.known_next};
  const auto size = static_cast<std::int64_t>(symbols.size());
  for (auto node = match.entries.rbegin(); node != match.entries.rend() && hit.in_memory == nullptr; ++node) {
    CacheEntry* entry = (*node)->entry;
    const bool at_end = (*node)->depth == size;
    if (!at_end && !extends(*entry)) continue;
    if (hit.deepest == nullptr && (!at_end || entry->has_logits())) hit.deepest = entry;
    if (entry->memory && (!at_end || !entry->memory->logits.empty())) hit.in_memory = entry;
  }
  for (PrefixIndex::Node* node : match.entries) node->entry->last_use = lookups_;
  return hit;
}

CacheEntry* SnapshotStore::find_entry(std::span<const Symbol> prefix) const {
  const PrefixIndex::Match match = index_.match(prefix);
  if (match.entries.empty() || match.entries.back()->depth != static_cast<std::int64_t>(prefix.size())) return nullptr;
  return match.entries.back()->entry;
}

CacheEntry& SnapshotStore::entry_at(PrefixIndex::Node& node, SnapshotKind kind) {
  if (node.entry == nullptr) {
    node.entry = new CacheEntry{&node, nullptr, std::nullopt, kind, lookups_};
    entries_.insert(node.entry);
  }
  node.entry->kind = std::max(node.entry->kind, kind);
  return *node.entry;
}

const CacheEntry* SnapshotStore::ancestor_in_memory(const PrefixIndex::Node& node) {
  for (const PrefixIndex::Node* at = node.parent; at != nullptr; at = at->parent) {
    if (at->entry != nullptr && at->entry->memory) return at->entry;
  }
  return nullptr;
}

const CacheEntry* SnapshotStore::descendant_in_memory(const PrefixIndex::Node& node) {
  for (const PrefixIndex::Node* at = &node; !at->children.empty();) {
    at = at->children.begin()->second.get();
    if (at->entry != nullptr && at->entry->memory) return at->entry;
  }
  return nullptr;
}

/// Equal prefixes have equal pages (if they came about in the same way), so a snapshot takes those that the cache already holds
/// instead of its session's own.
SnapshotRef SnapshotStore::share_known_pages(const PrefixIndex::Node& node, const SnapshotRef& snapshot) const {
  auto shared = std::make_shared<Snapshot>(*snapshot);
  for (const CacheEntry* known : {ancestor_in_memory(node), descendant_in_memory(node)}) {
    if (known == nullptr) continue;
    const auto full = static_cast<std::size_t>(std::min(known->memory->position, snapshot->position) / kPageTokens);
    for (std::size_t i = 0; i < full && known->memory->pages[i]->history == shared->pages[i]->history; ++i) {
      shared->pages[i] = known->memory->pages[i];
    }
  }
  return shared;
}

std::uint64_t SnapshotStore::cost_of(const Snapshot& snapshot) const {
  std::uint64_t bytes = kEntryBytes + pool_.state_bytes() + snapshot.logits.size() * sizeof(float);
  for (const PageRef& page : snapshot.pages) {
    if (page->cache_references == 0) bytes += pool_.page_bytes();
  }
  return bytes;
}

void SnapshotStore::hold(CacheEntry& entry, SnapshotRef snapshot) {
  snapshot_bytes_ += cost_of(*snapshot);
  for (const PageRef& page : snapshot->pages) ++page->cache_references;
  entry.memory = std::move(snapshot);
}

void SnapshotStore::release(CacheEntry& entry) {
  for (const PageRef& page : entry.memory->pages) --page->cache_references;
  snapshot_bytes_ -= cost_of(*entry.memory);
  entry.memory.reset();
}

void SnapshotStore::forget(CacheEntry& entry) {
  index_.erase(*entry.node);
  entries_.erase(&entry);
  delete &entry;
}

double SnapshotStore::worth(const CacheEntry& entry) const {
  const CacheEntry* before = ancestor_in_memory(*entry.node);
  const std::int64_t saved = entry.node->depth - (before != nullptr ? before->node->depth : 0);
  std::uint64_t freed = kEntryBytes + pool_.state_bytes() + entry.memory->logits.size() * sizeof(float);
  for (std::size_t i = before != nullptr ? static_cast<std::size_t>(before->node->depth / kPageTokens) : 0;
       i < entry.memory->pages.size(); ++i) {
    if (entry.memory->pages[i]->cache_references == 1) freed += pool_.page_bytes();
  }
  // Falls fast at first and slowly later: the last requests keep their blocks, where edits and forks go back to, older ones their ends.
  const double age = 1 + static_cast<double>(lookups_ - entry.last_use);
  return static_cast<double>(saved) * weight(entry.kind) / (age * age) / static_cast<double>(freed);
}

bool SnapshotStore::evict_one(const CacheEntry* keep) {
  CacheEntry* least = nullptr;
  double least_worth = 0;
  for (CacheEntry* entry : entries_) {
    if (!entry->memory || entry == keep) continue;
    const double value = worth(*entry);
    // Ties by age, then depth: which one goes must not depend on addresses.
    if (least == nullptr || value < least_worth ||
        (value == least_worth && std::pair(entry->last_use, entry->node->depth) <
                                     std::pair(least->last_use, least->node->depth))) {
      least = entry;
      least_worth = value;
    }
  }
  if (least == nullptr) return false;
  release(*least);
  ++evictions_;
  if (!least->disk) forget(*least);
  return true;
}

CacheEntry* SnapshotStore::insert(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind) {
  HEIRLOOM_CHECK(snapshot->position == static_cast<std::int64_t>(prefix.size()));
  if (cost_of(*snapshot) > budget_bytes_) return nullptr;
  CacheEntry& entry = entry_at(index_.insert(prefix), kind);
  entry.last_use = lookups_;
  if (entry.memory) {
    if (snapshot->logits.empty() || !entry.memory->logits.empty()) return &entry;
    release(entry);  // the same state, now with logits
  }
  for (;;) {
    // Evicting may take away pages that would have been shared, hence again each time.
    SnapshotRef shared = share_known_pages(*entry.node, snapshot);
    if (bytes() + cost_of(*shared) <= budget_bytes_) {
      hold(entry, std::move(shared));
      return &entry;
    }
    if (!evict_one(&entry)) {
      if (!entry.disk) forget(entry);
      return nullptr;
    }
  }
}

void SnapshotStore::add_disk(std::span<const Symbol> prefix, DiskCopy copy, SnapshotKind kind) {
  entry_at(index_.insert(prefix), kind).disk = std::move(copy);
  while (bytes() > budget_bytes_ && evict_one(nullptr)) {
  }
}

void SnapshotStore::drop_disk(std::span<const Symbol> prefix) {
  CacheEntry* entry = find_entry(prefix);
  if (entry == nullptr) return;
  entry->disk.reset();
  if (!entry->memory) forget(*entry);
}

std::uint64_t SnapshotStore::bytes() const {
  return snapshot_bytes_ + static_cast<std::uint64_t>(index_.symbols_held()) * sizeof(Symbol);
}

}  // namespace heirloom::engine
