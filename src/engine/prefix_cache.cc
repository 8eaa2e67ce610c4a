#include "engine/prefix_cache.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace heirloom::engine {
namespace {

constexpr std::int64_t kSmallestStep = 64;
constexpr std::int64_t kLargestStep = 4096;
constexpr double kCopyShare = 0.02;
// Without captures a snapshot ends a chunk, and short chunks read all weights for little work: dense only at the start,
// where short shared prefixes lie, then coarse.
constexpr std::int64_t kDenseTokens = 256;
constexpr std::int64_t kCoarseStep = 512;

void average(double& value, double sample) { value = value == 0 ? sample : 0.8 * value + 0.2 * sample; }

}  // namespace

PrefixCache::PrefixCache(StatePool& pool, Options options)
    : pool_(pool), options_(std::move(options)), store_(pool, options_.memory_bytes) {}

void PrefixCache::note_prefill(std::int64_t tokens, double ms) {
  if (tokens > 0) average(prefill_ms_per_token_, ms / static_cast<double>(tokens));
}

void PrefixCache::note_copy(double ms) { average(copy_ms_, ms); }

std::int64_t PrefixCache::block_step(std::int64_t prompt_tokens) const {
  std::int64_t step = kSmallestStep;
  // More block snapshots of one prompt than half the budget holds would only evict each other.
  const auto affordable = std::max<std::int64_t>(
      4, static_cast<std::int64_t>(options_.memory_bytes / 2 / std::max<std::size_t>(pool_.state_bytes(), 1)));
  while (step < kLargestStep && (copy_ms_ > kCopyShare * prefill_ms_per_token_ * static_cast<double>(step) ||
                                 prompt_tokens / step > affordable)) {
    step *= 2;
  }
  return step;
}

PrefixCache::Start PrefixCache::start(const Prompt& prompt) {
  Start start;
  if (!enabled()) return start;
  const SnapshotStore::Hit hit = store_.find(prompt.symbols);
  if (hit.entry != nullptr) start.snapshot = hit.entry->memory;
  const std::int64_t cached = start.snapshot ? start.snapshot->position : 0;
  ++(cached > 0 ? hits_ : misses_);
  if (hit.known_length > cached && hit.known_length < prompt.size()) start.fork = hit.known_length;
  log_start(prompt, hit, cached);
  return start;
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
    if (position <= from || position > prompt.size()) return;
    const auto [at, added] = places.emplace(position, kind);
    if (!added) at->second = std::max(at->second, kind);
  };
  std::int64_t step = block_step(prompt.size());
  if (!options_.captures) {
    for (std::int64_t p = step; p <= kDenseTokens; p += step) place(p, SnapshotKind::block);
    step = std::max(step, kCoarseStep);
  }
  for (std::int64_t p = from / step * step + step; p < prompt.size(); p += step) place(p, SnapshotKind::block);
  for (const std::int64_t p : prompt.boundaries) place(p, SnapshotKind::boundary);
  if (start.fork > 0) place(start.fork, SnapshotKind::fork);
  place(prompt.size(), SnapshotKind::prompt_end);
  std::vector<PlannedSnapshot> planned;
  for (const auto& [position, kind] : places) planned.push_back({position, kind});
  return planned;
}

void PrefixCache::keep(std::span<const Symbol> prefix, const SnapshotRef& snapshot, SnapshotKind kind) {
  if (enabled()) store_.insert(prefix, snapshot, kind);
}

}  // namespace heirloom::engine
