// The cache through the scheduler: whatever it reuses, answers must be those of a cold run, number for number.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/engine_fixture.h"

namespace heirloom::test {
namespace {

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
    EXPECT_LE(static_cast<std::int64_t>(depth) - revealing.cached, 64);
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
  log::set_level(log::Level::debug);
  testing::internal::CaptureStderr();
  for (std::uint32_t turn = 0; turn < 10; ++turn) {
    const Answer answer = ask(fixture, text_prompt(chat), 40);
    EXPECT_GE(answer.cached, known) << "turn " << turn;
    // The next prompt holds the answer as it was: all but its last token, which was never fed.
    known = static_cast<std::int64_t>(chat.size() + answer.ids.size()) - 1;
    chat = joined(joined(chat, answer.ids), random_ids(30, turn + 100));
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  log::set_level(log::Level::info);
  EXPECT_EQ(std::ranges::count(lines, '\n'), 10) << lines;
  EXPECT_NE(lines.find("189 of 220 tokens from a snapshot; first differs at token 189: token"), std::string::npos) << lines;
}

TEST(prefix_cache, any_of_the_last_tokens_can_be_gone_back_to_for_a_block_step_at_most) {
  EngineFixture fixture;
  const Ids ids = random_ids(30, 1);
  const Answer answer = ask(fixture, text_prompt(ids), 300);
  for (std::size_t kept = 299; kept > 200; --kept) {
    Ids back = joined(ids, Ids(answer.ids.begin(), answer.ids.begin() + static_cast<std::ptrdiff_t>(kept)));
    back.push_back(24);  // another token than the answer's, so that nothing at all is known beyond
    const auto rows = fixture.model.rows_run.load();
    const Answer again = ask(fixture, text_prompt(back), 1);
    EXPECT_LE(fixture.model.rows_run - rows, 64u) << kept;
    ASSERT_TRUE(again.same_numbers(ask_cold(text_prompt(back), 1))) << kept;
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
  const auto with_picture = [](std::uint64_t hash, std::uint8_t pixel) {
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
    job.on_token = [answer = answers.back().get()](const TokenEvent& event) { answer->note(event); };
    handles.push_back(fixture.submit(std::move(job)));
  }
  for (std::uint32_t i = 0; i < 16; ++i) {
    handles[i]->wait();
    EXPECT_TRUE(answers[i]->same_numbers(ask_cold(text_prompt(joined(common, random_ids(i % 5, i % 3))), 60))) << i;
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

TEST(prefix_cache, the_newest_prompt_keeps_its_blocks_when_older_ones_fill_the_budget) {
  EngineFixture::Options options;
  options.cache_bytes = 60'000;
  EngineFixture fixture(options);
  const std::int64_t step = fixture.cache->block_step(600);
  for (std::uint32_t round = 0; round < 8; ++round) {
    const Ids prompt = random_ids(600, 10 * round);
    ask(fixture, text_prompt(prompt), 1);
    for (const std::uint32_t at : {450u, 400u, 300u}) {
      const Ids kept(prompt.begin(), prompt.begin() + at);
      const Answer changed = ask(fixture, text_prompt(joined(kept, random_ids(600 - at, 10 * round + at))), 1);
      EXPECT_GE(changed.cached, at - step) << "round " << round << ", changed at " << at;
    }
  }
  EXPECT_GT(fixture.scheduler->metrics().cache_evictions, 0u);
}

TEST(prefix_cache, the_block_step_follows_from_the_shape_alone) {
  // Qwen3.5-0.8B: 18 layers of 16 heads of 128 x 128 f32, 1.2 G operations a token; Qwen3.6-35B-A3B: 30 layers of 32 heads, 5 G.
  EXPECT_EQ(engine::block_step_for(19'759'104, 1.2e9), 64);
  EXPECT_EQ(engine::block_step_for(65'900'000, 5e9), 64);
  EXPECT_EQ(engine::block_step_for(65'900'000, 1.2e9), 256);  // a large state in a small model
  EXPECT_EQ(engine::block_step_for(1 << 20, 0), 64);
}

TEST(prefix_cache, the_block_step_grows_where_the_budget_holds_few_states) {
  FakeBackend backend;
  FakeModel model(backend);
  engine::StatePool pool(backend, model.state_shape(DType::f32));
  engine::PrefixCache::Options options;
  options.memory_bytes = 1 << 20;
  EXPECT_EQ(engine::PrefixCache(pool, options).block_step(2048), 64);
  options.memory_bytes = 8 * pool.state_bytes();
  EXPECT_EQ(engine::PrefixCache(pool, options).block_step(2048), 512);
}

TEST(prefix_cache, a_hundred_shared_tokens_help_however_large_the_block_step) {
  EngineFixture::Options options;
  options.block_step = 4096;
  EngineFixture fixture(options);
  const Ids common = random_ids(100, 11);
  ask(fixture, text_prompt(joined(common, random_ids(5000, 1))), 1);
  const Answer second = ask(fixture, text_prompt(joined(common, random_ids(50, 2))), 4);
  EXPECT_EQ(second.cached, 64);
  EXPECT_TRUE(second.same_numbers(ask_cold(text_prompt(joined(common, random_ids(50, 2))), 4)));
}

}  // namespace
}  // namespace heirloom::test
