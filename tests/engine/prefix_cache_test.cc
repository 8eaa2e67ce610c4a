// The cache through the scheduler: whatever it reuses, answers must be those of a cold run, number for number.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/engine_fixture.h"
#include "engine/host_state.h"

namespace heirloom::test {
namespace {

using Ids = std::vector<std::int32_t>;

struct Answer {
  Ids ids;
  std::vector<float> logprobs;
  std::int64_t cached = 0;
  bool same_numbers(const Answer& other) const { return ids == other.ids && logprobs == other.logprobs; }
};

Answer ask(EngineFixture& fixture, engine::Prompt prompt, int tokens) {
  Answer answer;
  engine::Job job = fixture.job(std::move(prompt), tokens);
  job.on_token = [&](const TokenEvent& event) {
    answer.ids.push_back(event.id);
    answer.logprobs.push_back(event.chosen->logprob);
    for (const auto& top : event.top) answer.logprobs.push_back(top.logprob);
  };
  answer.cached = fixture.run(std::move(job)).cached_tokens;
  return answer;
}

Answer ask_cold(engine::Prompt prompt, int tokens) {
  EngineFixture::Options options;
  options.cache_bytes = 0;
  options.slots = 1;
  EngineFixture fixture(options);
  return ask(fixture, std::move(prompt), tokens);
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class resume : public testing::TestWithParam<bool> {};

TEST_P(resume, is_exact_at_every_depth) {
  for (const std::size_t depth : {1u, 31u, 32u, 33u, 63u, 64u, 65u, 2047u, 2048u, 2049u}) {
    EngineFixture::Options options;
    options.cache_bytes = 8 << 20;
    options.captures = GetParam();
    EngineFixture fixture(options);
    const Ids common = random_ids(depth, static_cast<std::uint32_t>(depth));
    const Ids first = joined(common, random_ids(20, 1)), second = joined(common, random_ids(30, 2)), third = joined(common, random_ids(25, 3));
    ask(fixture, text_prompt(common), 1);
    const Answer after_end = ask(fixture, text_prompt(first), 8);
    EXPECT_EQ(after_end.cached, static_cast<std::int64_t>(depth));
    EXPECT_TRUE(after_end.same_numbers(ask_cold(text_prompt(first), 8))) << depth;

    EngineFixture forked(options);
    ask(forked, text_prompt(first), 4);
    const Answer revealing = ask(forked, text_prompt(second), 8);  // leaves a snapshot at the fork
    EXPECT_TRUE(revealing.same_numbers(ask_cold(text_prompt(second), 8))) << depth;
    EXPECT_LE(static_cast<std::int64_t>(depth) - revealing.cached, options.captures ? 64 : 512);
    const Answer using_it = ask(forked, text_prompt(third), 8);
    // Fork snapshots that would save fewer than 16 tokens are not made.
    const auto saved = static_cast<std::int64_t>(depth) - revealing.cached;
    EXPECT_EQ(using_it.cached, saved >= 16 ? static_cast<std::int64_t>(depth) : revealing.cached);
    EXPECT_TRUE(using_it.same_numbers(ask_cold(text_prompt(third), 8))) << depth;
  }
}

INSTANTIATE_TEST_SUITE_P(with_and_without_captures, resume, testing::Bool());

TEST(prefix_cache, an_exact_repeat_computes_nothing) {
  EngineFixture fixture;
  const Ids ids = random_ids(777, 5);
  const Answer first = ask(fixture, text_prompt(ids), 1);
  const auto rows = fixture.model.rows_run.load();
  const Answer again = ask(fixture, text_prompt(ids), 1);
  EXPECT_EQ(fixture.model.rows_run, rows);
  EXPECT_EQ(again.cached, 777);
  EXPECT_TRUE(again.same_numbers(first));
}

TEST(prefix_cache, shared_prefixes_of_any_length_help_the_second_request) {  // case C05
  for (const std::size_t shared : {100u, 300u, 527u, 529u}) {
    EngineFixture fixture;
    const Ids common = random_ids(shared, 11);
    ask(fixture, text_prompt(joined(common, random_ids(400, 1))), 4);
    const Answer second = ask(fixture, text_prompt(joined(common, random_ids(400, 2))), 4);
    EXPECT_GE(second.cached, static_cast<std::int64_t>(shared) - 63) << shared;
    EXPECT_TRUE(second.same_numbers(ask_cold(text_prompt(joined(common, random_ids(400, 2))), 4)));
  }
}

TEST(prefix_cache, a_growing_chat_recomputes_only_what_is_new) {  // case C01
  EngineFixture fixture;
  Ids chat = random_ids(150, 1);
  std::int64_t known = 0;
  for (std::uint32_t turn = 0; turn < 10; ++turn) {
    const Answer answer = ask(fixture, text_prompt(chat), 40);
    EXPECT_GE(answer.cached, known) << "turn " << turn;
    // The next prompt holds the answer as it was: all but its last token, which was never fed.
    known = static_cast<std::int64_t>(chat.size() + answer.ids.size()) - 1;
    chat = joined(joined(chat, answer.ids), random_ids(30, turn + 100));
  }
}

TEST(prefix_cache, going_back_inside_a_long_answer_recomputes_a_block_step_at_most) {
  EngineFixture fixture;
  const Ids ids = random_ids(30, 1);
  const Answer answer = ask(fixture, text_prompt(ids), 400);
  for (const std::size_t kept : {10u, 100u, 250u, 399u}) {
    const Ids back = joined(joined(ids, Ids(answer.ids.begin(), answer.ids.begin() + static_cast<std::ptrdiff_t>(kept))), {1, 2});
    const Answer again = ask(fixture, text_prompt(back), 4);
    EXPECT_GE(again.cached, std::max<std::int64_t>(30, 30 + static_cast<std::int64_t>(kept) - 64)) << kept;
    EXPECT_TRUE(again.same_numbers(ask_cold(text_prompt(back), 4))) << kept;
  }
}

TEST(prefix_cache, pictures_are_part_of_the_prefix) {
  const auto with_picture = [](std::uint64_t hash, float pixel) {
    engine::Prompt prompt;
    prompt.token_ids = random_ids(120, 1);
    auto unit = std::make_shared<engine::ImageUnit>();
    unit->content_hash = hash;
    unit->make_input = [pixel] {
      model::VisionInput input;
      input.pixels = {pixel};
      input.grids = {{1, 4, 10}};
      return input;
    };
    prompt.images.push_back({30, 40, 0, unit});
    engine::set_plain_positions(prompt);
    engine::set_symbols(prompt);
    return prompt;
  };
  EngineFixture fixture;
  const Answer cat = ask(fixture, with_picture(1, 5), 6);
  EXPECT_EQ(fixture.model.images_encoded, 1);
  const Answer dog = ask(fixture, with_picture(2, 6), 6);
  EXPECT_EQ(dog.cached, 0);  // the first block snapshot lies inside the picture
  EXPECT_EQ(fixture.model.images_encoded, 2);
  EXPECT_FALSE(dog.same_numbers(cat));
  EXPECT_TRUE(dog.same_numbers(ask_cold(with_picture(2, 6), 6)));
  const Answer again = ask(fixture, with_picture(1, 5), 6);
  EXPECT_EQ(again.cached, 120);
  EXPECT_TRUE(again.same_numbers(cat));
  EXPECT_EQ(fixture.model.images_encoded, 2);
  const Answer cat_from_middle = ask(fixture, [&] {
    engine::Prompt prompt = with_picture(1, 5);
    prompt.token_ids.back() = 24 - prompt.token_ids.back();
    engine::set_symbols(prompt);
    return prompt;
  }(), 6);
  EXPECT_EQ(cat_from_middle.cached, 64);  // inside the picture, whose features are still known
  EXPECT_EQ(fixture.model.images_encoded, 2);
}

TEST(prefix_cache, a_running_session_is_not_disturbed_by_others_that_start_from_its_snapshots) {
  EngineFixture fixture;
  const Ids common = random_ids(100, 3);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  std::vector<std::unique_ptr<Answer>> answers;
  for (std::uint32_t i = 0; i < 16; ++i) {
    engine::Job job = fixture.job(text_prompt(joined(common, random_ids(i % 5, i % 3))), 60);
    answers.push_back(std::make_unique<Answer>());
    job.on_token = [answer = answers.back().get()](const TokenEvent& event) {
      answer->ids.push_back(event.id);
      answer->logprobs.push_back(event.chosen->logprob);
      for (const auto& top : event.top) answer->logprobs.push_back(top.logprob);
    };
    handles.push_back(fixture.submit(std::move(job)));
  }
  for (std::uint32_t i = 0; i < 16; ++i) {
    handles[i]->wait();
    EXPECT_TRUE(answers[i]->same_numbers(ask_cold(text_prompt(joined(common, random_ids(i % 5, i % 3))), 60))) << i;
  }
}

/// What an unlimited cache must know, as plain sets of prefixes.
class CacheModel {
 public:
  std::int64_t expected_start(const Ids& prompt) const {
    std::int64_t best = 0;
    for (const auto& [prefix, logits] : known_) {
      const bool is_prefix = prefix.size() <= prompt.size() && std::equal(prefix.begin(), prefix.end(), prompt.begin());
      if (is_prefix && (prefix.size() < prompt.size() || logits)) best = std::max(best, static_cast<std::int64_t>(prefix.size()));
    }
    return best;
  }
  void ran(const Ids& prompt, const Ids& answer) {
    const std::int64_t start = expected_start(prompt);
    std::int64_t shared = 0;
    for (const auto& [prefix, logits] : known_) {
      const auto limit = static_cast<std::ptrdiff_t>(std::min(prefix.size(), prompt.size()));
      shared = std::max<std::int64_t>(shared, std::mismatch(prefix.begin(), prefix.begin() + limit, prompt.begin()).first - prefix.begin());
    }
    const auto size = static_cast<std::int64_t>(prompt.size());
    for (std::int64_t p = start / 64 * 64 + 64; p < size; p += 64) add(prompt, p, false);
    if (shared >= start + 16 && shared < size) add(prompt, shared, false);
    add(prompt, size, true);
    Ids all = joined(prompt, answer);
    const auto end = static_cast<std::int64_t>(all.size()) - 1;
    for (std::int64_t p = size / 64 * 64 + 64; p < end; p += 64) add(all, p, false);
    add(all, end, false);
  }

 private:
  void add(const Ids& ids, std::int64_t length, bool logits) {
    bool& has = known_[Ids(ids.begin(), ids.begin() + length)];
    has = has || logits;
  }
  std::map<Ids, bool> known_;
};

/// A random tree of requests: each continues or changes an earlier one at a random place.
Ids random_request(std::mt19937& random, std::vector<Ids>& history) {
  Ids ids;
  if (!history.empty() && random() % 8 != 0) {
    ids = history[random() % history.size()];
    if (random() % 3 != 0) ids.resize(1 + random() % ids.size());
    if (ids.size() > 500) ids.resize(500);
  }
  if (ids.empty() || random() % 4 != 0) ids = joined(std::move(ids), random_ids(1 + random() % 90, static_cast<std::uint32_t>(random()), 6));
  return ids;
}

TEST(prefix_cache, random_request_trees_start_where_a_model_of_the_cache_says) {
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    EngineFixture::Options options;
    options.cache_bytes = 512 << 20;
    EngineFixture fixture(options);
    CacheModel model;
    std::vector<Ids> history;
    for (int i = 0; i < 60; ++i) {
      const Ids ids = random_request(random, history);
      const int tokens = 1 + static_cast<int>(random() % 12);
      const Answer answer = ask(fixture, text_prompt(ids), tokens);
      ASSERT_EQ(answer.cached, model.expected_start(ids)) << "seed " << seed << " request " << i;
      ASSERT_TRUE(answer.same_numbers(ask_cold(text_prompt(ids), tokens))) << "seed " << seed << " request " << i;
      model.ran(ids, answer.ids);
      history.push_back(joined(ids, answer.ids));
    }
  }
}

TEST(prefix_cache, random_request_trees_are_exact_and_in_budget_under_pressure) {
  for (const std::uint64_t budget : {20'000u, 60'000u, 200'000u}) {
    std::mt19937 random(static_cast<std::uint32_t>(budget));
    EngineFixture::Options options;
    options.cache_bytes = budget;
    EngineFixture fixture(options);
    std::vector<Ids> history;
    for (int i = 0; i < 120; ++i) {
      const Ids ids = random_request(random, history);
      const Answer answer = ask(fixture, text_prompt(ids), 5);
      ASSERT_TRUE(answer.same_numbers(ask_cold(text_prompt(ids), 5))) << "budget " << budget << " request " << i;
      ASSERT_LE(fixture.scheduler->metrics().cache_ram_bytes, budget);
      history.push_back(joined(ids, answer.ids));
    }
    // Without running requests all that is referenced is the cache's.
    const EngineMetrics metrics = fixture.scheduler->metrics();
    EXPECT_LE(metrics.kv_bytes, budget);
    EXPECT_GT(metrics.cache_evictions, 0u);
    EXPECT_GT(metrics.cache_hits, 0u);
    EXPECT_GT(metrics.cache_ram_bytes, budget / 2);
  }
}

TEST(prefix_cache, switched_off_it_keeps_nothing) {
  EngineFixture::Options options;
  options.cache_bytes = 0;
  EngineFixture fixture(options);
  ask(fixture, text_prompt(random_ids(300, 1)), 3);
  EXPECT_EQ(ask(fixture, text_prompt(random_ids(300, 1)), 3).cached, 0);
  EXPECT_EQ(fixture.scheduler->metrics().kv_bytes, 0u);
}

TEST(prefix_cache, ends_of_prompts_outlive_block_snapshots) {
  EngineFixture::Options options;
  options.cache_bytes = 40'000;
  EngineFixture fixture(options);
  const Ids first = random_ids(170, 1);
  ask(fixture, text_prompt(first), 1);
  ask(fixture, text_prompt(random_ids(600, 2)), 1);  // presses the first prompt's blocks out
  EXPECT_EQ(ask(fixture, text_prompt(first), 1).cached, 170);
}

TEST(prefix_cache, the_block_step_follows_measured_costs_and_budget) {
  FakeBackend backend;
  FakeModel model(backend);
  engine::StatePool pool(backend, model.state_shape(DType::f32));
  engine::PrefixCache::Options options;
  options.memory_bytes = 1 << 20;
  engine::PrefixCache cache(pool, options);
  cache.note_prefill(100, 100.0);  // 1 ms a token: 64 tokens may cost 1.28 ms
  cache.note_copy(1.0);
  EXPECT_EQ(cache.block_step(1000), 64);
  engine::PrefixCache dear(pool, options);
  dear.note_prefill(100, 100.0);
  dear.note_copy(4.0);
  EXPECT_EQ(dear.block_step(1000), 256);
  options.memory_bytes = 8 * pool.state_bytes();
  engine::PrefixCache small(pool, options);
  EXPECT_EQ(small.block_step(2048), 512);
}

}  // namespace
}  // namespace heirloom::test
