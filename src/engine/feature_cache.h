// Image features computed by the vision tower, kept for reuse by content within a budget of bytes (least recently used
// goes first): the same picture in a later turn or another request is not encoded again. Engine's thread only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "engine/prompt.h"
#include "engine/live_sequence.h"

namespace heirloom::engine {

class FeatureCache {
 public:
  explicit FeatureCache(std::uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  /// Null if not there.
  std::shared_ptr<const EncodedUnit> find(std::uint64_t content_hash);
  void insert(std::uint64_t content_hash, std::shared_ptr<const EncodedUnit> unit);

 private:
  struct Item {
    std::uint64_t hash;
    std::shared_ptr<const EncodedUnit> unit;
  };
  std::uint64_t budget_bytes_;
  std::uint64_t bytes_ = 0;
  std::list<Item> items_;  // most recently used first
  std::unordered_map<std::uint64_t, std::list<Item>::iterator> by_hash_;
};

}  // namespace heirloom::engine
