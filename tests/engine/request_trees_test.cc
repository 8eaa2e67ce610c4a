// Random trees of requests, with pictures and restarts, against a model of the cache: plain sets of prefixes that say where
// each request must start. Whatever is reused, the answer must be that of a cold run, number for number.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "engine/engine_fixture.h"

namespace heirloom::test {
namespace {

namespace fs = std::filesystem;

/// What a request is made of: a token, or a picture of 9 tokens (-1, -2, ... name it).
using Items = std::vector<int>;

engine::Prompt prompt_of(const Items& items) {
  engine::Prompt prompt;
  for (const int item : items) {
    if (item >= 0) {
      prompt.token_ids.push_back(item);
      continue;
    }
    auto unit = std::make_shared<engine::ImageUnit>();
    unit->content_hash = static_cast<std::uint64_t>(1000 - item);
    unit->make_input = [item] {
      model::VisionInput input;
      input.pixels = {static_cast<std::uint8_t>(-item)};
      input.grids = {{1, 3, 3}};
      return input;
    };
    prompt.images.push_back({prompt.size(), 9, 0, std::move(unit)});
    prompt.token_ids.insert(prompt.token_ids.end(), 9, 96);
  }
  engine::set_plain_positions(prompt);
  engine::set_symbols(prompt);
  return prompt;
}

using Symbols = std::vector<engine::Symbol>;

/// What an unlimited cache with block snapshots at multiples of 64 must know.
class CacheModel {
 public:
  std::int64_t expected_start(const Symbols& prompt) const {
    std::int64_t best = 0;
    for (const auto& [prefix, known] : known_) {
      const bool is_prefix = prefix.size() <= prompt.size() && std::equal(prefix.begin(), prefix.end(), prompt.begin());
      if (is_prefix && (prefix.size() < prompt.size() || known.logits)) best = std::max(best, static_cast<std::int64_t>(prefix.size()));
    }
    return best;
  }
  void ran(const Symbols& prompt, const Ids& answer) {
    const std::int64_t start = expected_start(prompt);
    std::int64_t shared = 0;
    for (const auto& [prefix, known] : known_) {
      const auto limit = static_cast<std::ptrdiff_t>(std::min(prefix.size(), prompt.size()));
      shared = std::max<std::int64_t>(shared, std::mismatch(prefix.begin(), prefix.begin() + limit, prompt.begin()).first - prefix.begin());
    }
    if (start > 0) add(prompt, start, known_[first(prompt, start)].logits, true);  // what came from disk is in memory now
    const auto size = static_cast<std::int64_t>(prompt.size());
    if (shared >= start + 16 && shared < size) add(prompt, shared, false, true);
    for (std::int64_t p = start / 64 * 64 + 64; p < size; p += 64) add(prompt, p, false, p % 512 == 0);
    add(prompt, size, true, true);
    Symbols all = prompt;
    all.insert(all.end(), answer.begin(), answer.end());
    const auto end = static_cast<std::int64_t>(all.size()) - 1;
    for (std::int64_t p = size / 64 * 64 + 64; p < end; p += 64) add(all, p, false, p % 512 == 0);
    add(all, end, false, true);
  }
  /// Block snapshots other than multiples of 512 do not go to disk.
  void restart() {
    std::erase_if(known_, [](const auto& item) { return !item.second.on_disk; });
    for (auto& [prefix, known] : known_) known.in_memory = false;
  }

 private:
  struct Known {
    bool logits = false, in_memory = false, on_disk = false;
  };
  static Symbols first(const Symbols& symbols, std::int64_t length) { return {symbols.begin(), symbols.begin() + length}; }
  void add(const Symbols& symbols, std::int64_t length, bool logits, bool for_disk) {
    Known& known = known_[first(symbols, length)];
    if (known.in_memory && (known.logits || !logits)) return;  // nothing new, so nothing is kept
    known = {known.logits || logits, true, known.on_disk || for_disk};
  }
  std::map<Symbols, Known> known_;
};

/// Continues or changes an earlier request at a random place.
Items random_request(std::mt19937& random, const std::vector<Items>& history, bool pictures) {
  Items items;
  if (!history.empty() && random() % 8 != 0) {
    items = history[random() % history.size()];
    if (random() % 3 != 0) items.resize(1 + random() % items.size());
    if (items.size() > 500) items.resize(500);
  }
  if (!items.empty() && random() % 4 == 0) return items;
  const std::size_t more = 1 + random() % 90;
  for (std::size_t i = 0; i < more; ++i) {
    const bool picture = pictures && random() % 30 == 0;
    items.push_back(picture ? -1 - static_cast<int>(random() % 4) : static_cast<int>(random() % 6));
  }
  return items;
}

Items with_answer(Items items, const Answer& answer) {
  items.insert(items.end(), answer.ids.begin(), answer.ids.end());
  return items;
}

TEST(request_trees, start_where_a_model_of_the_cache_says) {
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    EngineFixture::Options options;
    options.cache_bytes = 512 << 20;
    EngineFixture fixture(options);
    CacheModel model;
    std::vector<Items> history;
    for (int i = 0; i < 60; ++i) {
      const Items items = random_request(random, history, seed % 2 == 1);
      const engine::Prompt prompt = prompt_of(items);
      const int tokens = 1 + static_cast<int>(random() % 12);
      const Answer answer = ask(fixture, prompt, tokens);
      ASSERT_EQ(answer.cached, model.expected_start(prompt.symbols)) << "seed " << seed << " request " << i;
      ASSERT_TRUE(answer.same_numbers(ask_cold(prompt, tokens))) << "seed " << seed << " request " << i;
      model.ran(prompt.symbols, answer.ids);
      history.push_back(with_answer(items, answer));
    }
  }
}

TEST(request_trees, start_where_the_model_says_across_restarts) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("heirloom-trees-{}", ::getpid());
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    fs::remove_all(folder);
    std::mt19937 random(seed);
    EngineFixture::Options options;
    options.cache_bytes = 512 << 20;
    options.disk_folder = folder;
    CacheModel model;
    std::vector<Items> history;
    for (int run = 0; run < 4; ++run) {
      EngineFixture fixture(options);
      model.restart();
      for (int i = 0; i < 20; ++i) {
        const Items items = random_request(random, history, true);
        const engine::Prompt prompt = prompt_of(items);
        const Answer answer = ask(fixture, prompt, 5);
        ASSERT_EQ(answer.cached, model.expected_start(prompt.symbols)) << "seed " << seed << " run " << run << " request " << i;
        ASSERT_TRUE(answer.same_numbers(ask_cold(prompt, 5))) << "seed " << seed << " run " << run << " request " << i;
        model.ran(prompt.symbols, answer.ids);
        history.push_back(with_answer(items, answer));
      }
    }
  }
  fs::remove_all(folder);
}

TEST(request_trees, are_exact_and_in_budget_under_pressure) {
  for (const std::uint64_t budget : {20'000u, 60'000u, 200'000u}) {
    std::mt19937 random(static_cast<std::uint32_t>(budget));
    EngineFixture::Options options;
    options.cache_bytes = budget;
    EngineFixture fixture(options);
    std::vector<Items> history;
    for (int i = 0; i < 120; ++i) {
      const Items items = random_request(random, history, true);
      const Answer answer = ask(fixture, prompt_of(items), 5);
      ASSERT_TRUE(answer.same_numbers(ask_cold(prompt_of(items), 5))) << "budget " << budget << " request " << i;
      ASSERT_LE(fixture.scheduler->metrics().cache_ram_bytes, budget);
      history.push_back(with_answer(items, answer));
    }
    // Without running requests all that is referenced is the cache's.
    const EngineMetrics metrics = fixture.scheduler->metrics();
    EXPECT_LE(metrics.kv_bytes, budget);
    EXPECT_GT(metrics.cache_evictions, 0u);
    EXPECT_GT(metrics.cache_hits, 0u);
    EXPECT_GT(metrics.cache_ram_bytes, budget / 2);
  }
}

}  // namespace
}  // namespace heirloom::test
