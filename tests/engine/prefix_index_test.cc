#include "engine/prefix_index.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "engine/snapshot_store.h"

namespace heirloom::engine {
namespace {

TEST(prefix_index, finds_what_a_plain_set_of_prefixes_finds) {
  std::mt19937 random(4);
  PrefixIndex index;
  std::vector<std::unique_ptr<CacheEntry>> entries;
  std::map<std::vector<Symbol>, CacheEntry*> set;
  const auto random_path = [&] {
    std::vector<Symbol> path(1 + random() % 12);
    for (Symbol& symbol : path) symbol = random() % 3;
    return path;
  };
  for (int i = 0; i < 4000; ++i) {
    const auto path = random_path();
    if (random() % 3 == 0 && !set.empty()) {
      auto victim = set.lower_bound(path);
      if (victim == set.end()) victim = set.begin();
      index.erase(*victim->second->node);
      set.erase(victim);
    } else if (!set.contains(path)) {
      entries.push_back(std::make_unique<CacheEntry>());
      entries.back()->node = &index.insert(path);
      entries.back()->node->entry = entries.back().get();
      set[path] = entries.back().get();
    }
    const auto probe = random_path();
    const PrefixIndex::Match match = index.match(probe);
    std::vector<CacheEntry*> expected;
    std::size_t shared = 0;
    for (std::size_t n = 1; n <= probe.size(); ++n) {
      const std::vector<Symbol> prefix(probe.begin(), probe.begin() + static_cast<std::ptrdiff_t>(n));
      if (set.contains(prefix)) expected.push_back(set[prefix]);
      const auto next = set.lower_bound(prefix);
      if (next != set.end() && std::equal(prefix.begin(), prefix.end(), next->first.begin(),
                                          next->first.begin() + static_cast<std::ptrdiff_t>(std::min(n, next->first.size())))) {
        shared = n;
      }
    }
    std::vector<CacheEntry*> found;
    for (const auto* node : match.entries) {
      found.push_back(node->entry);
      EXPECT_EQ(PrefixIndex::path(*node), std::vector<Symbol>(probe.begin(), probe.begin() + node->depth));
    }
    ASSERT_EQ(found, expected);
    ASSERT_EQ(match.length, static_cast<std::int64_t>(shared));
  }
  while (!set.empty()) {
    index.erase(*set.begin()->second->node);
    set.erase(set.begin());
  }
  EXPECT_EQ(index.symbols_held(), 0);
}

}  // namespace
}  // namespace heirloom::engine
