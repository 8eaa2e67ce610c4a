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
    int vocab = 97;
    std::filesystem::path disk_folder;
    std::uint64_t disk_bytes = 64 << 20;
    engine::Key128 model_key{};
  };

  EngineFixture() : EngineFixture(Options()) {}
  explicit EngineFixture(const Options& options) : model(backend, options.vocab) {
    backend.captures = options.captures;
    pool = std::make_unique<engine::StatePool>(backend, model.state_shape(DType::f32));
    engine::PrefixCache::Options cache_options;
    cache_options.memory_bytes = options.cache_bytes;
    cache_options.block_step = 64;
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

}  // namespace heirloom::test
