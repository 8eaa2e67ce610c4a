#include "engine/feature_cache.h"

namespace heirloom::engine {

std::shared_ptr<const EncodedUnit> FeatureCache::find(std::uint64_t content_hash) {
  const auto at = by_hash_.find(content_hash);
  if (at == by_hash_.end()) return nullptr;
  items_.splice(items_.begin(), items_, at->second);
  return at->second->unit;
}

void FeatureCache::insert(std::uint64_t content_hash, std::shared_ptr<const EncodedUnit> unit) {
  if (unit->features.bytes() > budget_bytes_ || by_hash_.contains(content_hash)) return;
  bytes_ += unit->features.bytes();
  items_.push_front({content_hash, std::move(unit)});
  by_hash_[content_hash] = items_.begin();
  while (bytes_ > budget_bytes_) {
    bytes_ -= items_.back().unit->features.bytes();
    by_hash_.erase(items_.back().hash);
    items_.pop_back();
  }
}

}  // namespace heirloom::engine
