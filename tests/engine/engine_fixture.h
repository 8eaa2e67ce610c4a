// A scheduler over the fake model, and prompts for it.
#pragma once

#include <memory>
#include <random>

#include "engine/fake_model.h"
#include "engine/scheduler.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

namespace heirloom::test {

/// id 0..25 = 'a'..'z', 26 = "<end>", from 27 on all other single bytes.
inline const text::Tokenizer& tiny_tokenizer() {
  static const text::Tokenizer tokenizer = [] {
    text::GgufVocabulary vocabulary;
    for (char c = 'a'; c <= 'z'; ++c) vocabulary.tokens.push_back(std::string(1, c));
    vocabulary.tokens.push_back("<end>");
    vocabulary.token_types.assign(26, 1);
    vocabulary.token_types.push_back(3);
    for (int byte = 0; byte < 256; ++byte) {
      if (byte >= 'a' && byte <= 'z') continue;
      vocabulary.tokens.emplace_back(text::byte_to_alphabet(static_cast<unsigned char>(byte)));
      vocabulary.token_types.push_back(1);
    }
    vocabulary.pre = "qwen35";
    return text::Tokenizer::from_gguf(vocabulary);
  }();
  return tokenizer;
}

inline constexpr std::int32_t kEndToken = 26;

inline engine::Prompt text_prompt(std::vector<std::int32_t> ids) {
  engine::Prompt prompt;
  prompt.token_ids = std::move(ids);
  engine::set_plain_positions(prompt);
  engine::set_symbols(prompt);
  return prompt;
}

inline std::vector<std::int32_t> random_ids(std::size_t count, std::uint32_t seed, int vocab = 25) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(count);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
  return ids;
}

struct EngineFixture {
  struct Options {
    int slots = 4;
    std::uint64_t cache_bytes = 1 << 20;
    std::int64_t chunk = 512;
    bool captures = true;
    std::int64_t block_step = 64;
    std::int64_t fixed_step = 0;  // above 0: a backend like a GPU, which rounds by the shape of a step
    int vocab = 97;
    std::filesystem::path disk_folder;
    std::uint64_t disk_bytes = 64 << 20;
    engine::Key128 model_key{};
  };

  EngineFixture() : EngineFixture(Options()) {}
  explicit EngineFixture(const Options& options) : model(backend, options.vocab) {
    backend.captures = options.captures && options.fixed_step == 0;
    backend.host_memory = options.fixed_step == 0;
    model.rounds_by_shape = options.fixed_step > 0;
    pool = std::make_unique<engine::StatePool>(backend, model.state_shape(DType::f32));
    engine::PrefixCache::Options cache_options;
    cache_options.memory_bytes = options.cache_bytes;
    cache_options.block_step = options.block_step;
    cache_options.fixed_step = options.fixed_step;
    cache_options.token_operations = 1e12;  // reading is always quicker than computing
    cache_options.disk_folder = options.disk_folder;
    cache_options.disk_bytes = options.disk_bytes;
    cache_options.model = options.model_key;
    cache_options.vocab_size = static_cast<std::size_t>(options.vocab);
    cache_options.on_event = [bell = doorbell] { bell->ring(); };
    cache = std::make_unique<engine::PrefixCache>(*pool, cache_options);
    engine::Scheduler::Options scheduler_options;
    scheduler_options.slots = options.slots;
    scheduler_options.largest_chunk = options.chunk;
    scheduler_options.end_tokens = {kEndToken};
    scheduler_options.doorbell = doorbell;
    scheduler_options.feature_bytes = 1 << 20;
    scheduler = std::make_unique<engine::Scheduler>(model, *pool, *cache, scheduler_options);
  }

  engine::Job job(engine::Prompt prompt, std::int64_t max_tokens) {
    engine::Job result;
    result.prompt = std::move(prompt);
    result.max_tokens = max_tokens;
    result.ignore_eos = true;
    result.top_logprobs = 5;
    result.text.emplace(tiny_tokenizer(), false, std::vector<std::string>{});
    return result;
  }

  std::shared_ptr<RequestHandle> submit(engine::Job job) { return scheduler->submit(std::move(job)); }
  RequestResult run(engine::Job job) { return submit(std::move(job))->wait(); }

  std::shared_ptr<engine::Doorbell> doorbell = std::make_shared<engine::Doorbell>();
  FakeBackend backend;
  FakeModel model;
  std::unique_ptr<engine::StatePool> pool;
  std::unique_ptr<engine::PrefixCache> cache;
  std::unique_ptr<engine::Scheduler> scheduler;
};

using Ids = std::vector<std::int32_t>;

inline Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// All numbers of an answer that a caller can see.
struct Answer {
  Ids ids;
  std::vector<float> numbers;  // ids and log probabilities
  std::int64_t cached = 0;
  void note(const TokenEvent& event) {
    ids.push_back(event.id);
    numbers.push_back(static_cast<float>(event.id));
    numbers.push_back(event.chosen->logprob);
    for (const auto& top : event.top) numbers.push_back(top.logprob);
  }
  bool same_numbers(const Answer& other) const { return numbers == other.numbers; }
};

inline Answer ask(EngineFixture& fixture, engine::Prompt prompt, int tokens) {
  Answer answer;
  engine::Job job = fixture.job(std::move(prompt), tokens);
  job.on_token = [&](const TokenEvent& event) { answer.note(event); };
  answer.cached = fixture.run(std::move(job)).cached_tokens;
  return answer;
}

/// With nothing to resume from. A backend with fixed steps takes them only beside a cache: there it is empty.
inline Answer ask_cold(engine::Prompt prompt, int tokens, EngineFixture::Options options = {}) {
  if (options.fixed_step == 0) options.cache_bytes = 0;
  options.disk_folder.clear();
  options.slots = 1;
  EngineFixture fixture(options);
  return ask(fixture, std::move(prompt), tokens);
}

}  // namespace heirloom::test
