// Backends that round by the shape of a step, as GPUs do (the fake model then mixes the number of rows into its numbers): fixed
// steps make a resumed prompt equal a cold one all the same, alone or beside other requests.
#include "engine/fixed_steps.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "engine/engine_fixture.h"

namespace heirloom::test {
namespace {

namespace fs = std::filesystem;

EngineFixture::Options fixed_options() {
  EngineFixture::Options options;
  options.cache_bytes = 64 << 20;
  options.fixed_step = 256;
  return options;
}

Answer cold(const Ids& ids, int tokens) { return ask_cold(text_prompt(ids), tokens, fixed_options()); }

TEST(fixed_steps, end_early_once_and_then_at_multiples) {
  std::vector<std::int64_t> ends;
  for (std::int64_t p = 0; p < 1024;) ends.push_back(p = engine::fixed_end_above(p, 256));
  EXPECT_EQ(ends, (std::vector<std::int64_t>{64, 256, 512, 768, 1024}));
  for (std::int64_t p = 0; p < 1024; ++p) {
    const std::int64_t below = engine::fixed_end_at_or_below(p, 256);
    EXPECT_LE(below, p);
    EXPECT_GT(engine::fixed_end_above(below, 256), p);
    EXPECT_TRUE(below == 0 || engine::fixed_end_at_or_below(below, 256) == below);
  }
}

TEST(fixed_steps, the_fake_model_does_round_by_the_shape) {
  // Else the tests below could not fail: one more row in a step changes the numbers of the others.
  EngineFixture::Options other = fixed_options();
  other.fixed_step = 128;
  const Ids ids = random_ids(400, 1);
  EXPECT_FALSE(cold(ids, 3).same_numbers(ask_cold(text_prompt(ids), 3, other)));
}

TEST(fixed_steps, resume_exactly_at_every_depth) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("heirloom-fixed-{}", ::getpid());
  for (const std::size_t depth : {1u, 31u, 32u, 33u, 63u, 64u, 65u, 100u, 255u, 256u, 257u, 2047u, 2048u, 2049u}) {
    fs::remove_all(folder);
    EngineFixture::Options options = fixed_options();
    options.disk_folder = folder;
    const Ids common = random_ids(depth, static_cast<std::uint32_t>(depth));
    const Ids longer = joined(common, random_ids(20, 1)), other = joined(common, random_ids(300, 2));
    const std::int64_t usable = engine::fixed_end_at_or_below(static_cast<std::int64_t>(depth), 256);
    {
      EngineFixture fixture(options);
      ask(fixture, text_prompt(common), 1);
      const Answer answer = ask(fixture, text_prompt(longer), 8);
      EXPECT_EQ(answer.cached, usable);
      EXPECT_TRUE(answer.same_numbers(cold(longer, 8))) << depth;
      const auto rows = fixture.model.rows_run.load();
      const Answer repeat = ask(fixture, text_prompt(longer), 8);
      EXPECT_EQ(fixture.model.rows_run - rows, 7u);  // decoding alone
      EXPECT_TRUE(repeat.same_numbers(answer)) << depth;
    }
    EngineFixture restarted(options);
    const Answer answer = ask(restarted, text_prompt(other), 8);
    EXPECT_LE(answer.cached, usable);
    EXPECT_TRUE(answer.same_numbers(cold(other, 8))) << depth;
    EXPECT_TRUE(ask(restarted, text_prompt(longer), 8).same_numbers(cold(longer, 8))) << depth;
  }
  fs::remove_all(folder);
}

TEST(fixed_steps, random_forks_are_exact) {
  std::mt19937 random(3);
  EngineFixture fixture(fixed_options());
  std::vector<Ids> history = {random_ids(900, 1)};
  std::int64_t reused = 0;
  for (std::uint32_t i = 0; i < 40; ++i) {
    Ids ids = history[random() % history.size()];
    ids.resize(1 + random() % ids.size());
    ids = joined(std::move(ids), random_ids(1 + random() % 400, i));
    const Answer answer = ask(fixture, text_prompt(ids), 3);
    ASSERT_TRUE(answer.same_numbers(cold(ids, 3))) << i;
    reused += answer.cached;
    history.push_back(ids);
  }
  EXPECT_GT(reused, 5000);
}

TEST(fixed_steps, prompts_that_run_at_once_do_not_change_each_other) {
  EngineFixture fixture(fixed_options());
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (std::uint32_t i = 0; i < 8; ++i) {
    engine::Job job = fixture.job(text_prompt(random_ids(100 + 130 * i, i)), 20);
    answers.push_back(std::make_unique<Answer>());
    job.on_token = [answer = answers.back().get()](const TokenEvent& event) { answer->note(event); };
    handles.push_back(fixture.submit(std::move(job)));
  }
  for (std::uint32_t i = 0; i < 8; ++i) {
    handles[i]->wait();
    EXPECT_TRUE(answers[i]->same_numbers(cold(random_ids(100 + 130 * i, i), 20))) << i;
  }
}

TEST(fixed_steps, a_session_goes_on_from_its_answer_as_if_it_had_not_stopped) {
  // In memory, from disk, and by hand without any snapshot: the answer's tokens were decoded, not read as part of a prompt.
  const fs::path folder = fs::temp_directory_path() / fmt::format("heirloom-fixed-turn-{}", ::getpid());
  fs::remove_all(folder);
  EngineFixture::Options options = fixed_options();
  options.disk_folder = folder;
  const Ids prompt = random_ids(300, 5);
  Ids next;
  Answer in_memory;
  {
    EngineFixture fixture(options);
    const Answer answer = ask(fixture, text_prompt(prompt), 40);
    next = joined(joined(prompt, answer.ids), random_ids(250, 6));
    in_memory = ask(fixture, text_prompt(next), 5);
    EXPECT_EQ(in_memory.cached, 339);
  }
  {
    EngineFixture restarted(options);
    const Answer from_disk = ask(restarted, text_prompt(next), 5);
    EXPECT_EQ(from_disk.cached, 590);
    EXPECT_TRUE(from_disk.same_numbers(in_memory));
    const Ids other = joined(Ids(next.begin(), next.begin() + 339), random_ids(30, 7));
    EXPECT_EQ(ask(restarted, text_prompt(other), 1).cached, 339);
  }

  FakeBackend backend;
  FakeModel model(backend);
  model.rounds_by_shape = true;
  engine::StatePool pool(backend, model.state_shape(DType::f32));
  engine::SessionState state(pool);
  std::vector<float> logits;
  const auto feed = [&](std::size_t from, std::size_t to) {
    model::StepInput input;
    const auto rows = static_cast<std::int32_t>(to - from);
    input.plan.shape = pool.shape();
    input.plan.num_rows = rows;
    input.plan.sequences.push_back(state.step(0, rows));
    for (std::size_t axis = 0; axis < 3; ++axis) {
      for (std::size_t p = from; p < to; ++p) input.positions.push_back(static_cast<std::int32_t>(p));
    }
    input.token_ids.assign(next.begin() + static_cast<std::ptrdiff_t>(from), next.begin() + static_cast<std::ptrdiff_t>(to));
    input.logits_rows = {rows - 1};
    const model::StepOutput output = model.forward(input, nullptr);
    logits.assign(output.logits.data, output.logits.data + output.logits.cols);
    state.advance(rows);
  };
  for (const auto& [from, to] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 64}, {64, 256}, {256, 300}}) feed(from, to);
  for (std::size_t p = 300; p < 339; ++p) feed(p, p + 1);
  feed(339, 512);
  feed(512, next.size());
  const auto best = static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  EXPECT_EQ(in_memory.ids.front(), best);
  EXPECT_EQ(in_memory.numbers[1], engine::logprob_of(logits, best).logprob);
  fs::remove_all(folder);
}

TEST(fixed_steps, a_long_prompt_does_not_stop_running_streams) {
  EngineFixture fixture(fixed_options());
  fixture.model.before_forward = [](const model::StepInput& input) {
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + 50 * input.plan.num_rows));
  };
  std::atomic<bool> long_done{false};
  std::atomic<int> beside{0};
  std::promise<void> streaming;
  int tokens = 0;
  engine::Job stream = fixture.job(text_prompt({1, 2, 3}), 100000);
  stream.on_token = [&](const TokenEvent&) {
    if (++tokens == 20) streaming.set_value();
    if (tokens > 20 && !long_done) ++beside;
  };
  const auto running = fixture.submit(std::move(stream));
  streaming.get_future().wait();
  fixture.run(fixture.job(text_prompt(random_ids(1000, 8)), 1));
  long_done = true;
  running->cancel();
  running->wait();
  EXPECT_GT(beside, 20);  // five prefill steps, each paid for with decode steps of 1.25 times its time
}

}  // namespace
}  // namespace heirloom::test
