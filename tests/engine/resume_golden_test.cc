// Real forward passes on the golden kit's tiny checkpoints: an answer that starts from a snapshot, in memory or on disk,
// equals the uninterrupted one number for number (log probabilities of the 20 best tokens at every step).
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "base/check.h"
#include "base/mapped_file.h"
#include "heirloom/engine.h"
#include "support/golden.h"

namespace heirloom::test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

struct Answer {
  std::vector<float> numbers;
  std::int64_t cached = 0;
};

EngineOptions options_for(const fs::path& model, bool cache) {
  EngineOptions options;
  options.model = model.string();
  options.device = "cpu";
  options.context_tokens = 4096;
  options.cache_ram_bytes = cache ? 256 << 20 : 0;
  return options;
}

Answer ask(Engine& engine, Request request, int tokens) {
  Answer answer;
  request.max_tokens = tokens;
  request.ignore_eos = true;
  request.top_logprobs = 20;
  const auto handle = engine.submit(std::move(request), [&](const TokenEvent& event) {
    answer.numbers.push_back(static_cast<float>(event.id));
    for (const auto& top : event.top) answer.numbers.push_back(top.logprob);
  }, {});
  const RequestResult& result = handle->wait();
  EXPECT_EQ(result.finish_reason, FinishReason::length) << (result.error ? result.error->what() : "");
  answer.cached = result.cached_tokens;
  return answer;
}

Request tokens_request(Ids ids) {
  Request request;
  request.token_ids = std::move(ids);
  return request;
}

Ids random_tokens(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Ids ids(count);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % 300);
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class resume_golden : public testing::TestWithParam<const char*> {};

TEST_P(resume_golden, every_depth_in_memory_and_on_disk) {
  const fs::path model = golden(std::string("models/") + GetParam());
  HEIRLOOM_REQUIRE(model);
  const fs::path folder = fs::temp_directory_path() / fmt::format("heirloom-resume-{}-{}", GetParam(), ::getpid());
  fs::remove_all(folder);
  const auto cold = Engine::load(options_for(model, false));
  std::map<std::size_t, Answer> expected;
  const std::vector<std::size_t> depths = {1, 31, 32, 33, 63, 64, 65, 2047, 2048, 2049};
  const auto prompt = [&](std::size_t depth) { return random_tokens(depth, static_cast<std::uint32_t>(depth)); };
  const auto longer = [&](std::size_t depth) { return joined(prompt(depth), random_tokens(9, 77)); };
  EngineOptions with_disk = options_for(model, true);
  with_disk.cache_dir = folder.string();
  {
    const auto engine = Engine::load(with_disk);
    for (const std::size_t depth : depths) {
      expected[depth] = ask(*cold, tokens_request(longer(depth)), 4);
      EXPECT_EQ(expected[depth].cached, 0);
      ask(*engine, tokens_request(prompt(depth)), 1);
      const Answer resumed = ask(*engine, tokens_request(longer(depth)), 4);
      EXPECT_EQ(resumed.cached, static_cast<std::int64_t>(depth));
      EXPECT_EQ(resumed.numbers, expected[depth].numbers) << depth;
    }
  }
  const auto restarted = Engine::load(with_disk);
  for (const std::size_t depth : depths) {
    // Ends of prompts are on disk, the longer prompts too: ask for another continuation.
    const Ids other = joined(prompt(depth), random_tokens(7, 88));
    const Answer resumed = ask(*restarted, tokens_request(other), 4);
    EXPECT_EQ(resumed.cached, static_cast<std::int64_t>(depth));
    EXPECT_EQ(resumed.numbers, ask(*cold, tokens_request(other), 4).numbers) << depth;
  }
  fs::remove_all(folder);
}

TEST_P(resume_golden, random_forks) {
  const fs::path model = golden(std::string("models/") + GetParam());
  HEIRLOOM_REQUIRE(model);
  const auto cold = Engine::load(options_for(model, false));
  const auto engine = Engine::load(options_for(model, true));
  std::mt19937 random(5);
  std::vector<Ids> history = {random_tokens(200, 1)};
  ask(*engine, tokens_request(history.front()), 1);
  std::int64_t reused = 0;
  for (std::uint32_t i = 0; i < 12; ++i) {
    Ids ids = history[random() % history.size()];
    // Half of them go on from the end of an earlier prompt, where a snapshot always is; how many lie inside depends on the
    // machine's speed.
    if (random() % 2 == 0) ids.resize(1 + random() % ids.size());
    ids = joined(ids, random_tokens(1 + random() % 60, i + 10));
    const Answer warm = ask(*engine, tokens_request(ids), 3);
    EXPECT_EQ(warm.numbers, ask(*cold, tokens_request(ids), 3).numbers) << i;
    reused += warm.cached;
    history.push_back(ids);
  }
  EXPECT_GT(reused, 0);
}

INSTANTIATE_TEST_SUITE_P(models, resume_golden, testing::Values("dense_a", "moe_b"));

class resume_pictures : public testing::TestWithParam<const char*> {};

TEST_P(resume_pictures, text_after_one_and_two_pictures) {
  const fs::path model = golden(std::string("models/") + GetParam());
  const fs::path pictures = golden("images");
  HEIRLOOM_REQUIRE(model);
  HEIRLOOM_REQUIRE(pictures);
  const auto request = [&](const std::vector<std::string>& names, const std::string& after) {
    Request result;
    std::string text = "ab";
    for (const std::string& name : names) {
      const MappedFile file(pictures / name);
      result.images.push_back({{file.bytes().begin(), file.bytes().end()}, name});
      text += "<|vision_start|><|image_pad|><|vision_end|>cd";
    }
    result.raw_text = text + after;
    return result;
  };
  const auto cold = Engine::load(options_for(model, false));
  const auto engine = Engine::load(options_for(model, true));
  const Answer first = ask(*engine, request({"tiny.png"}, "xyz"), 2);
  EXPECT_EQ(first.numbers, ask(*cold, request({"tiny.png"}, "xyz"), 2).numbers);
  const Answer again = ask(*engine, request({"tiny.png"}, "xyzw"), 3);
  EXPECT_GT(again.cached, 2);
  EXPECT_EQ(again.numbers, ask(*cold, request({"tiny.png"}, "xyzw"), 3).numbers);
  const Answer two = ask(*engine, request({"tiny.png", "gray.png"}, "q"), 3);
  EXPECT_EQ(two.numbers, ask(*cold, request({"tiny.png", "gray.png"}, "q"), 3).numbers);
  const Answer two_again = ask(*engine, request({"tiny.png", "gray.png"}, "qq"), 3);
  EXPECT_GT(two_again.cached, again.cached);
  EXPECT_EQ(two_again.numbers, ask(*cold, request({"tiny.png", "gray.png"}, "qq"), 3).numbers);
  const Answer other = ask(*engine, request({"gray.png", "tiny.png"}, "qq"), 3);
  EXPECT_LT(other.cached, 4);  // another picture first: nothing but the text before it is shared
  EXPECT_EQ(other.numbers, ask(*cold, request({"gray.png", "tiny.png"}, "qq"), 3).numbers);
}

INSTANTIATE_TEST_SUITE_P(models, resume_pictures, testing::Values("moe_a", "mini_a"));

}  // namespace
}  // namespace heirloom::test
