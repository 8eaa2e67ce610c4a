#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <future>

#include "engine/engine_fixture.h"

namespace heirloom::test {
namespace {

/// Everything that a caller can see of the numbers of an answer.
struct Trace {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const Trace&) const = default;
};

struct Recorder {
  Trace trace;
  std::string text;
  void attach(engine::Job& job) {
    job.on_token = [this](const TokenEvent& event) {
      trace.ids.push_back(event.id);
      text += event.text;
      if (event.chosen) trace.logprobs.push_back(event.chosen->logprob);
      for (const auto& top : event.top) trace.logprobs.push_back(top.logprob);
    };
  }
};

Trace run_alone(const std::vector<std::int32_t>& ids, int tokens, SamplingParams sampling = {}) {
  EngineFixture::Options options;
  options.cache_bytes = 0;
  options.slots = 1;
  EngineFixture fixture(options);
  Recorder recorder;
  engine::Job job = fixture.job(text_prompt(ids), tokens);
  job.sampling = sampling;
  recorder.attach(job);
  fixture.run(std::move(job));
  return recorder.trace;
}

TEST(scheduler, answers_are_the_same_alone_and_in_a_batch) {
  EngineFixture::Options options;
  options.slots = 5;
  options.cache_bytes = 0;
  options.chunk = 32;
  EngineFixture fixture(options);
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  SamplingParams sampled;
  sampled.temperature = 1.0f;
  sampled.top_p = 0.9f;
  for (std::uint32_t i = 0; i < 12; ++i) {
    engine::Job job = fixture.job(text_prompt(random_ids(1 + i * 37, i)), 20 + i);
    if (i % 3 == 0) {
      job.sampling = sampled;
      job.sampling.seed = i;
    }
    recorders.push_back(std::make_unique<Recorder>());
    recorders.back()->attach(job);
    handles.push_back(fixture.submit(std::move(job)));
  }
  for (std::uint32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(handles[i]->wait().finish_reason, FinishReason::length);
    if (i % 3 == 0) sampled.seed = i;
    EXPECT_EQ(recorders[i]->trace, run_alone(random_ids(1 + i * 37, i), static_cast<int>(20 + i), i % 3 == 0 ? sampled : SamplingParams{}))
        << "request " << i;
  }
  EXPECT_EQ(fixture.scheduler->metrics().requests_total, 12u);
}

TEST(scheduler, max_tokens_and_length_are_obeyed) {
  EngineFixture fixture;
  const RequestResult result = fixture.run(fixture.job(text_prompt({1, 2, 3}), 7));
  EXPECT_EQ(result.finish_reason, FinishReason::length);
  EXPECT_EQ(result.token_ids.size(), 7u);
  EXPECT_EQ(result.prompt_tokens, 3);
}

TEST(scheduler, an_end_token_ends_the_answer_and_shows_no_text) {
  EngineFixture fixture;
  int calls = 0;
  fixture.model.after_logits = [&](std::span<float> logits) { logits[static_cast<std::size_t>(++calls < 4 ? 7 : kEndToken)] = 1000; };
  engine::Job job = fixture.job(text_prompt({1, 2, 3}), 50);
  job.ignore_eos = false;
  const RequestResult result = fixture.run(std::move(job));
  EXPECT_EQ(result.finish_reason, FinishReason::stop);
  EXPECT_EQ(result.token_ids, (std::vector<std::int32_t>{7, 7, 7, kEndToken}));
  EXPECT_EQ(result.text, "hhh");
}

TEST(scheduler, a_stop_string_over_several_tokens_is_never_shown) {
  EngineFixture fixture;
  const std::string answer = "abxyzabxyq";
  std::size_t at = 0;
  fixture.model.after_logits = [&](std::span<float> logits) { logits[static_cast<std::size_t>(answer[at++ % answer.size()] - 'a')] = 1000; };
  engine::Job job = fixture.job(text_prompt({1}), 50);
  job.text.emplace(tiny_tokenizer(), false, std::vector<std::string>{"bxyq"});
  Recorder recorder;
  recorder.attach(job);
  const RequestResult result = fixture.run(std::move(job));
  EXPECT_EQ(result.finish_reason, FinishReason::stop);
  EXPECT_EQ(result.stop_string, "bxyq");
  EXPECT_EQ(result.text, "abxyza");
  EXPECT_EQ(recorder.text, result.text);
}

TEST(scheduler, cancelling_frees_the_slot_during_prefill_decode_and_in_the_queue) {
  EngineFixture::Options options;
  options.slots = 1;
  options.chunk = 16;
  options.cache_bytes = 0;
  EngineFixture fixture(options);
  std::promise<void> stepped;
  std::atomic<int> steps{0};
  fixture.model.before_forward = [&](const model::StepInput&) {
    if (++steps == 3) stepped.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto prefilling = fixture.submit(fixture.job(text_prompt(random_ids(4000, 1)), 10));
  const auto queued = fixture.submit(fixture.job(text_prompt(random_ids(10, 2)), 10));
  stepped.get_future().wait();
  queued->cancel();
  prefilling->cancel();
  EXPECT_EQ(prefilling->wait().finish_reason, FinishReason::cancelled);
  EXPECT_EQ(queued->wait().finish_reason, FinishReason::cancelled);
  EXPECT_LT(steps, 100);

  std::shared_ptr<RequestHandle> decoding;
  engine::Job job = fixture.job(text_prompt({1, 2}), 100000);
  std::promise<void> some_tokens;
  int tokens = 0;
  job.on_token = [&](const TokenEvent&) {
    if (++tokens == 5) some_tokens.set_value();
  };
  decoding = fixture.submit(std::move(job));
  some_tokens.get_future().wait();
  decoding->cancel();
  EXPECT_EQ(decoding->wait().finish_reason, FinishReason::cancelled);
  EXPECT_EQ(fixture.run(fixture.job(text_prompt({3}), 4)).finish_reason, FinishReason::length);
  EXPECT_EQ(fixture.scheduler->metrics().requests_cancelled, 3u);
}

class ThrowingConstraint : public TokenConstraint {
 public:
  bool mask(std::span<std::uint32_t>) override { return false; }
  void accept(std::int32_t) override {
    if (++accepted_ == 3) throw std::runtime_error("constraint broke");
  }
  bool finished() const override { return false; }

 private:
  int accepted_ = 0;
};

TEST(scheduler, a_failing_request_fails_alone) {
  EngineFixture fixture;
  engine::Job broken = fixture.job(text_prompt({5, 6}), 30);
  broken.constraint = std::make_shared<ThrowingConstraint>();
  engine::Job throwing_callback = fixture.job(text_prompt({5, 7}), 30);
  throwing_callback.on_token = [](const TokenEvent&) { throw std::runtime_error("client went away"); };
  Recorder recorder;
  engine::Job good = fixture.job(text_prompt(random_ids(50, 9)), 30);
  recorder.attach(good);
  const auto a = fixture.submit(std::move(broken));
  const auto b = fixture.submit(std::move(throwing_callback));
  const auto c = fixture.submit(std::move(good));
  EXPECT_EQ(a->wait().finish_reason, FinishReason::error);
  EXPECT_STREQ(a->wait().error->what(), "constraint broke");
  EXPECT_EQ(b->wait().finish_reason, FinishReason::error);
  EXPECT_EQ(c->wait().finish_reason, FinishReason::length);
  EXPECT_EQ(recorder.trace, run_alone(random_ids(50, 9), 30));
  EXPECT_EQ(fixture.scheduler->metrics().requests_failed, 2u);
}

TEST(scheduler, running_out_of_memory_fails_the_request_and_not_the_engine) {
  EngineFixture::Options options;
  options.cache_bytes = 0;
  EngineFixture fixture(options);
  fixture.run(fixture.job(text_prompt({1}), 2));
  fixture.backend.limit_bytes = fixture.backend.allocated_bytes;
  // One slab of pages is there: 64 pages of 64 tokens.
  const RequestResult result = fixture.run(fixture.job(text_prompt(random_ids(5000, 4)), 2));
  EXPECT_EQ(result.finish_reason, FinishReason::error);
  EXPECT_EQ(result.error->kind(), ErrorKind::does_not_fit);
  EXPECT_EQ(fixture.run(fixture.job(text_prompt({1}), 2)).finish_reason, FinishReason::length);
}

TEST(scheduler, a_failed_step_fails_its_requests_and_later_ones_work) {
  EngineFixture fixture;
  std::atomic<bool> broken{true};
  fixture.model.before_forward = [&](const model::StepInput&) {
    if (broken) throw Error(ErrorKind::device, "device lost");
  };
  EXPECT_EQ(fixture.run(fixture.job(text_prompt({1, 2}), 2)).error->kind(), ErrorKind::device);
  broken = false;
  EXPECT_EQ(fixture.run(fixture.job(text_prompt({1, 2}), 2)).finish_reason, FinishReason::length);
}

TEST(scheduler, embeddings_are_the_mean_of_all_hidden_states) {
  EngineFixture::Options options;
  options.chunk = 16;
  EngineFixture fixture(options);
  const auto ids = random_ids(100, 3);
  engine::Job job;
  job.prompt = text_prompt(ids);
  job.embed_only = true;
  const RequestResult result = fixture.run(std::move(job));
  ASSERT_EQ(result.embedding.size(), 4u);
  for (std::uint32_t k = 0; k < 4; ++k) {
    double sum = 0;
    for (std::uint32_t i = 0; i < 100; ++i) {
      std::uint32_t value = static_cast<std::uint32_t>(ids[i]) * 2654435761u;
      for (int axis = 0; axis < 3; ++axis) value = FakeModel::mix(value, i);
      sum += FakeModel::mix(value, k) % 1000;
    }
    EXPECT_FLOAT_EQ(result.embedding[k], static_cast<float>(sum / 100));
  }
  EXPECT_TRUE(result.token_ids.empty());
}

TEST(scheduler, a_long_prompt_does_not_stop_running_streams) {
  EngineFixture::Options options;
  options.cache_bytes = 0;
  EngineFixture fixture(options);
  // Time in proportion to rows, as on a CPU.
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
  // Chunks of at most 0.8 decode steps' time: 16 tokens and their cost; with whole chunks there would be two steps.
  EXPECT_GT(beside, 20);
}

TEST(scheduler, short_prompts_overtake_long_ones_that_came_first) {
  EngineFixture::Options options;
  options.chunk = 64;
  options.cache_bytes = 0;
  EngineFixture fixture(options);
  const auto slow = fixture.submit(fixture.job(text_prompt(random_ids(3000, 1)), 1));
  const auto quick = fixture.submit(fixture.job(text_prompt(random_ids(30, 2)), 1));
  quick->wait();
  EXPECT_FALSE(slow->finished());
  slow->wait();
}

TEST(scheduler, destroying_it_ends_all_requests) {
  std::shared_ptr<RequestHandle> running, queued;
  {
    EngineFixture::Options options;
    options.slots = 1;
    EngineFixture fixture(options);
    running = fixture.submit(fixture.job(text_prompt({1}), 1000000));
    queued = fixture.submit(fixture.job(text_prompt({2}), 1000000));
  }
  EXPECT_EQ(running->wait().finish_reason, FinishReason::cancelled);
  EXPECT_EQ(queued->wait().finish_reason, FinishReason::cancelled);
}

}  // namespace
}  // namespace heirloom::test
