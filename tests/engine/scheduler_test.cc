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

/// Forbids the end token until `ends(tokens so far)` and allows nothing else then. With `only` that is all it allows before.
class EndsWhen : public TokenConstraint {
 public:
  explicit EndsWhen(std::function<bool(std::size_t)> ends, std::int32_t only = -1) : ends_(std::move(ends)), only_(only) {}
  bool mask(std::span<std::uint32_t> allowed) override {
    const bool end = ends_(accepted.size());
    if (end || only_ >= 0) {
      std::ranges::fill(allowed, 0u);
      const auto id = static_cast<std::size_t>(end ? kEndToken : only_);
      allowed[id / 32] = 1u << (id % 32);
    } else {
      allowed[kEndToken / 32] &= ~(1u << (kEndToken % 32));
    }
    return true;
  }
  void accept(std::int32_t token) override { accepted.push_back(token); }
  bool finished() const override { return false; }

  std::vector<std::int32_t> accepted;

 private:
  std::function<bool(std::size_t)> ends_;
  std::int32_t only_;
};

/// Streams of the test below: a picture in the second, sampling with penalties in the third.
engine::Job stream(EngineFixture& fixture, std::uint32_t i, std::shared_ptr<EndsWhen> constraint) {
  engine::Prompt prompt = text_prompt(random_ids(60 + i * 30, i));
  if (i == 1) {
    auto unit = std::make_shared<engine::ImageUnit>();
    unit->content_hash = 5;
    unit->make_input = [] {
      model::VisionInput input;
      input.pixels = {5};
      input.grids = {{1, 4, 10}};
      return input;
    };
    prompt.images.push_back({30, 40, 0, unit});
    engine::set_symbols(prompt);
  }
  engine::Job job = fixture.job(std::move(prompt), 100000);
  if (i == 2) {
    job.sampling.temperature = 1.0f;
    job.sampling.seed = 7;
    job.sampling.repetition_penalty = 1.2f;
  }
  job.ignore_eos = false;
  job.constraint = std::move(constraint);
  return job;
}

const engine::Snapshot* turn_end(const EngineFixture& fixture, std::uint32_t i, const std::vector<std::int32_t>& answer) {
  EngineFixture scratch;
  std::vector<engine::Symbol> symbols = stream(scratch, i, nullptr).prompt.symbols;
  symbols.insert(symbols.end(), answer.begin(), answer.end() - 1);
  const engine::CacheEntry* entry = fixture.cache->store().entry_of(symbols);
  return entry == nullptr ? nullptr : entry->memory.get();
}

// Three streams, one that breaks every step it is in once it may, and beside them an embedding or a long prompt.
void check_recovery(const EngineFixture::Options& options, bool embed) {
  SCOPED_TRACE(fmt::format("cache {}, fixed step {}, embed {}", options.cache_bytes, options.fixed_step, embed));
  const bool separate = options.fixed_step > 0 && options.cache_bytes > 0;  // prompts have steps of their own
  EngineFixture fixture(options);
  constexpr std::int32_t kPoison = 90;
  constexpr std::size_t kBadPrompt = 40;
  bool armed = false, poisoned = false;
  int failures = 0;
  fixture.model.before_forward = [&](const model::StepInput& input) {
    bool bad = false, other = separate;
    for (std::size_t row = 0; row < input.token_ids.size(); ++row) {
      bad |= input.token_ids[row] == kPoison && input.positions[row] >= static_cast<std::int32_t>(kBadPrompt) + 5;
    }
    for (const ops::SequenceStep& step : input.plan.sequences) other |= step.num_rows > 1;
    other = other && (separate || input.want_hidden == embed);
    poisoned = bad && (failures > 0 || (armed && other && input.plan.sequences.size() > (separate ? 3u : 4u)));
  };
  // The states of the whole step have moved on when it throws. Nobody else chooses the poison.
  fixture.model.after_logits = [&](std::span<float> logits) {
    logits[kPoison] = -1000;
    if (!poisoned) return;
    ++failures;
    throw std::runtime_error("poison");
  };

  std::promise<void> running, go_on;
  std::vector<std::size_t> left(3, 20);  // tokens of each stream after the failure
  std::vector<Recorder> recorders(3);
  std::vector<std::shared_ptr<EndsWhen>> constraints;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (std::uint32_t i = 0; i < 3; ++i) {
    constraints.push_back(std::make_shared<EndsWhen>([&, i](std::size_t) { return failures == 2 && left[i]-- == 0; }));
    engine::Job job = stream(fixture, i, constraints.back());
    recorders[i].attach(job);
    if (i == 2) {
      job.on_token = [&, inner = job.on_token, tokens = 0](const TokenEvent& event) mutable {
        inner(event);
        if (++tokens != 10) return;
        running.set_value();
        go_on.get_future().wait();
        armed = true;
      };
    }
    handles.push_back(fixture.submit(std::move(job)));
  }
  engine::Job bad = fixture.job(text_prompt(random_ids(kBadPrompt, 7)), 100000);
  bad.constraint = std::make_shared<EndsWhen>([](std::size_t) { return false; }, kPoison);
  const auto failing = fixture.submit(std::move(bad));
  running.get_future().wait();
  const auto ids = random_ids(700, 9);
  const auto other_job = [&] {
    if (!embed) return fixture.job(text_prompt(ids), 20);
    engine::Job job;
    job.prompt = text_prompt(ids);
    job.embed_only = true;
    return job;
  };
  const auto other = fixture.submit(other_job());
  go_on.set_value();

  EXPECT_EQ(failing->wait().finish_reason, FinishReason::error);
  EXPECT_STREQ(failing->wait().error->what(), "poison");
  EXPECT_EQ(other->wait().finish_reason, embed ? FinishReason::stop : FinishReason::length);
  for (const auto& handle : handles) EXPECT_EQ(handle->wait().finish_reason, FinishReason::stop);
  EXPECT_EQ(failures, 2);  // together and alone
  EXPECT_EQ(fixture.scheduler->metrics().requests_failed, 1u);
  EXPECT_EQ(fixture.model.images_encoded, 1);
  if (options.fixed_step > 0 && !separate) return;  // numbers depend on who else was there, also without a failure

  EngineFixture::Options undisturbed = options;
  undisturbed.slots = 1;
  EngineFixture reference(undisturbed);
  reference.model.after_logits = [](std::span<float> logits) { logits[kPoison] = -1000; };
  for (std::uint32_t i = 0; i < 3; ++i) {
    const RequestResult& result = handles[i]->wait();
    EXPECT_EQ(constraints[i]->accepted, result.token_ids);
    EXPECT_EQ(result.cached_tokens, 0);
    engine::Job job = stream(reference, i, std::make_shared<EndsWhen>([&](std::size_t n) { return n + 1 == result.token_ids.size(); }));
    Recorder recorder;
    recorder.attach(job);
    reference.run(std::move(job));
    EXPECT_EQ(recorders[i].trace, recorder.trace) << i;
    EXPECT_EQ(recorders[i].text, result.text);
    if (options.cache_bytes == 0) continue;
    const auto *kept = turn_end(fixture, i, result.token_ids), *expected = turn_end(reference, i, result.token_ids);
    ASSERT_TRUE(kept != nullptr && expected != nullptr) << i;
    EXPECT_EQ(kept->history, expected->history) << i;
    EXPECT_EQ(kept->history != 0, separate) << i;
  }
  EXPECT_EQ(other->wait().token_ids, reference.run(other_job()).token_ids);
  EXPECT_EQ(other->wait().embedding, reference.run(other_job()).embedding);
}

TEST(scheduler, of_a_failed_step_only_the_request_at_fault_fails) {
  for (const std::uint64_t cache_bytes : {std::uint64_t{0}, std::uint64_t{64} << 20}) {
    for (const std::int64_t fixed_step : {0, 64}) {
      for (const bool embed : {false, true}) {
        EngineFixture::Options options;
        options.slots = 5;
        options.chunk = 32;
        options.cache_bytes = cache_bytes;
        options.fixed_step = fixed_step;
        check_recovery(options, embed);
      }
    }
  }
}

TEST(scheduler, a_request_can_be_cancelled_while_it_is_computed_again) {
  EngineFixture::Options options;
  options.fixed_step = 64;
  options.cache_bytes = 64 << 20;
  EngineFixture fixture(options);
  const auto ids = random_ids(100, 1);
  std::promise<void> running, submitted;
  std::shared_ptr<RequestHandle> a;
  int failures = 0, replayed = 0;
  fixture.model.before_forward = [&](const model::StepInput& input) {
    const bool together = input.plan.sequences.size() > 1;
    if (together && ++failures == 1) throw std::runtime_error("together");
    if (!together && failures == 1 && input.positions[0] >= 100 && ++replayed == 5) a->cancel();
  };
  engine::Job job = fixture.job(text_prompt(ids), 40);
  job.on_token = [&, tokens = 0](const TokenEvent&) mutable {
    if (++tokens != 20) return;
    running.set_value();
    submitted.get_future().wait();
  };
  a = fixture.submit(std::move(job));
  running.get_future().wait();
  const auto b = fixture.submit(fixture.job(text_prompt(random_ids(3, 2)), 40));
  submitted.set_value();
  EXPECT_EQ(a->wait().finish_reason, FinishReason::cancelled);
  EXPECT_GE(a->wait().token_ids.size(), 20u);
  EXPECT_EQ(b->wait().finish_reason, FinishReason::length);
  // What the cancelled request left in the cache is right.
  EXPECT_TRUE(ask(fixture, text_prompt(ids), 30).same_numbers(ask_cold(text_prompt(ids), 30, options)));
}

TEST(scheduler, steps_that_fail_only_together_or_with_the_device_fail_their_requests) {
  for (const ErrorKind kind : {ErrorKind::does_not_fit, ErrorKind::device}) {
    EngineFixture fixture;
    int failures = 0;
    fixture.model.before_forward = [&](const model::StepInput& input) {
      if (input.plan.sequences.size() <= 1) return;
      ++failures;
      throw Error(kind, "together");
    };
    // The first waits for the second.
    std::promise<void> submitted;
    engine::Job job = fixture.job(text_prompt({1, 2}), 5000);
    job.on_token = [&, tokens = 0](const TokenEvent&) mutable {
      if (++tokens == 3) submitted.get_future().wait();
    };
    const auto a = fixture.submit(std::move(job));
    const auto b = fixture.submit(fixture.job(text_prompt({3, 4}), 5000));
    submitted.set_value();
    ASSERT_EQ(a->wait().finish_reason, FinishReason::error);
    ASSERT_EQ(b->wait().finish_reason, FinishReason::error);
    EXPECT_EQ(a->wait().error->kind(), kind);
    EXPECT_EQ(b->wait().error->kind(), kind);
    EXPECT_EQ(failures, kind == ErrorKind::device ? 1 : 4);
    EXPECT_EQ(fixture.run(fixture.job(text_prompt({1, 2}), 2)).finish_reason, FinishReason::length);
  }
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
  // Chunks of at most 0.8 decode steps' time, 16 tokens and their cost, where sleeps last as long as asked for; fewer and larger ones,
  // and a burst at the end, where the machine is busy. With whole chunks there would be two steps.
  EXPECT_GT(beside, 6);
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
