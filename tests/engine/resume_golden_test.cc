// Real forward passes on the bundled models (quantised) and the golden kit's tiny checkpoints (floats): an answer that starts
// from a snapshot, in memory or on disk, equals the uninterrupted one number for number (log probabilities of the 20 best
// tokens at every step), on the CPU and, where there is one, on a GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "backend/cuda/device.h"
#include "base/check.h"
#include "base/mapped_file.h"
#include "engine/fixed_steps.h"
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

struct Case {
  const char* model;
  const char* device = "cpu";
  const char* kv_type = "f32";
};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}_{}", info.param.model, info.param.device, info.param.kv_type);
  std::ranges::replace(name, '-', '_');
  return name;
}

bool gpu() { return cuda::list_devices().front().usable; }

fs::path model_path(const Case& where) {
  const std::string name = where.model;
  if (name.starts_with("demo")) return fs::path(HEIRLOOM_SOURCE_DIR) / "models" / (name + ".gguf");
  return golden("models/" + name);
}

/// Without room for a snapshot (1 byte) a GPU still takes the fixed steps that it takes beside a cache.
EngineOptions options_for(const Case& where, bool cache) {
  EngineOptions options;
  options.model = model_path(where).string();
  options.device = where.device;
  options.kv_type = where.kv_type;
  options.context_tokens = 4096;
  options.cache_ram_bytes = cache ? 256 << 20 : 1;
  return options;
}

/// What a longer prompt can start from after one of `depth` tokens.
std::int64_t usable(const Case& where, std::size_t depth) {
  const auto tokens = static_cast<std::int64_t>(depth);
  return std::string(where.device) == "cpu" ? tokens : engine::fixed_end_at_or_below(tokens, 512);
}

#define REQUIRE_CASE(where)                                                              \
  do {                                                                                   \
    if (std::string((where).device) != "cpu" && !gpu()) GTEST_SKIP() << "no usable GPU"; \
    HEIRLOOM_REQUIRE(model_path(where));                                                 \
  } while (false)

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

class resume_golden : public testing::TestWithParam<Case> {};

TEST_P(resume_golden, every_depth_in_memory_and_on_disk) {
  const Case& where = GetParam();
  REQUIRE_CASE(where);
  const fs::path folder = fs::temp_directory_path() / fmt::format("heirloom-resume-{}-{}-{}", where.model, where.kv_type, ::getpid());
  fs::remove_all(folder);
  const auto cold = Engine::load(options_for(where, false));
  std::map<std::size_t, Answer> expected;
  const std::vector<std::size_t> depths = {1, 31, 32, 33, 63, 64, 65, 2047, 2048, 2049};
  const auto prompt = [&](std::size_t depth) { return random_tokens(depth, static_cast<std::uint32_t>(depth)); };
  const auto longer = [&](std::size_t depth) { return joined(prompt(depth), random_tokens(9, 77)); };
  EngineOptions with_disk = options_for(where, true);
  with_disk.cache_dir = folder.string();
  {
    const auto engine = Engine::load(with_disk);
    for (const std::size_t depth : depths) {
      expected[depth] = ask(*cold, tokens_request(longer(depth)), 4);
      EXPECT_EQ(expected[depth].cached, 0);
      ask(*engine, tokens_request(prompt(depth)), 1);
      const Answer resumed = ask(*engine, tokens_request(longer(depth)), 4);
      EXPECT_EQ(resumed.cached, usable(where, depth));
      EXPECT_EQ(resumed.numbers, expected[depth].numbers) << depth;
      const Answer repeated = ask(*engine, tokens_request(longer(depth)), 4);
      EXPECT_EQ(repeated.cached, static_cast<std::int64_t>(depth) + 9);
      EXPECT_EQ(repeated.numbers, expected[depth].numbers) << depth;
    }
  }
  const auto restarted = Engine::load(with_disk);
  for (const std::size_t depth : depths) {
    // Ends of prompts are on disk, the longer prompts too: ask for another continuation.
    const Ids other = joined(prompt(depth), random_tokens(7, 88));
    const Answer resumed = ask(*restarted, tokens_request(other), 4);
    if (std::string(where.device) == "cpu") {
      EXPECT_EQ(resumed.cached, static_cast<std::int64_t>(depth));
    }
    EXPECT_EQ(resumed.numbers, ask(*cold, tokens_request(other), 4).numbers) << depth;
  }
  fs::remove_all(folder);
}

TEST_P(resume_golden, random_forks) {
  const Case& where = GetParam();
  REQUIRE_CASE(where);
  const auto cold = Engine::load(options_for(where, false));
  const auto engine = Engine::load(options_for(where, true));
  std::mt19937 random(5);
  std::vector<Ids> history = {random_tokens(200, 1)};
  ask(*engine, tokens_request(history.front()), 1);
  std::int64_t reused = 0;
  for (std::uint32_t i = 0; i < 12; ++i) {
    Ids ids = history[random() % history.size()];
    if (random() % 2 == 0) ids.resize(1 + random() % ids.size());
    ids = joined(ids, random_tokens(1 + random() % 60, i + 10));
    const Answer warm = ask(*engine, tokens_request(ids), 3);
    EXPECT_EQ(warm.numbers, ask(*cold, tokens_request(ids), 3).numbers) << i;
    reused += warm.cached;
    history.push_back(ids);
  }
  EXPECT_GT(reused, 300);
}

INSTANTIATE_TEST_SUITE_P(models, resume_golden,
                         testing::Values(Case{"dense_a"}, Case{"moe_b"}, Case{"demo-vl"}, Case{"demo-moe"},
                                         Case{"demo-moe", "cpu", "f16"}, Case{"demo-vl", "cpu", "bf16"}, Case{"dense_a", "cuda"},
                                         Case{"moe_b", "cuda"}, Case{"demo-vl", "cuda"}, Case{"demo-moe", "cuda", "f16"}),
                         case_name);

class resume_tools : public testing::TestWithParam<Case> {};

TEST_P(resume_tools, fifty_tokens_of_a_tool_call_are_those_of_a_cold_run) {  // case C03
  const Case& where = GetParam();
  REQUIRE_CASE(where);
  const auto cold = Engine::load(options_for(where, false));
  std::string rules;
  for (int i = 0; i < 330; ++i) rules += "Be brief and exact. ";
  Request request;
  request.messages = {{{"role", "system"}, {"content", rules}}, {{"role", "user"}, {"content", "What is the weather in Paris?"}}};
  request.tools = {{{"type", "function"},
                    {"function", {{"name", "get_weather"},
                                  {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}}}};
  const Ids prompt = cold->inspect_prompt(request).token_ids;
  ASSERT_GT(prompt.size(), 2049u);
  const Answer expected = ask(*cold, tokens_request(prompt), 50);
  for (const std::size_t depth : {1u, 31u, 32u, 33u, 256u, 2047u, 2048u, 2049u}) {
    const auto engine = Engine::load(options_for(where, true));
    ask(*engine, tokens_request(Ids(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(depth))), 1);
    const Answer resumed = ask(*engine, tokens_request(prompt), 50);
    EXPECT_EQ(resumed.cached, usable(where, depth));
    EXPECT_EQ(resumed.numbers, expected.numbers) << depth;
  }
}

INSTANTIATE_TEST_SUITE_P(models, resume_tools, testing::Values(Case{"demo-moe"}, Case{"demo-moe", "cuda"}), case_name);

class resume_pictures : public testing::TestWithParam<Case> {};

TEST_P(resume_pictures, text_around_one_and_two_pictures) {
  const Case& where = GetParam();
  REQUIRE_CASE(where);
  const fs::path pictures = golden("images");
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
  const auto cold = Engine::load(options_for(where, false));
  const auto engine = Engine::load(options_for(where, true));
  std::string words;
  for (int i = 0; i < 60; ++i) words += fmt::format(" x{}", i);
  std::int64_t reused = 0;
  for (const std::vector<std::string>& shown : {std::vector<std::string>{"tiny.png"}, {"tiny.png", "gray.png"}}) {
    // Longer by little, by much, and changed inside.
    for (const std::string& after : {std::string("xyz"), std::string("xyzw"), "xyzw" + words, "xyzw" + words + " q", "xyzw" + words.substr(0, 90) + "!"}) {
      const Answer answer = ask(*engine, request(shown, after), 3);
      EXPECT_EQ(answer.numbers, ask(*cold, request(shown, after), 3).numbers) << shown.size() << " pictures, " << after;
      reused += answer.cached;
    }
  }
  EXPECT_GT(reused, 300);
  const Answer other = ask(*engine, request({"gray.png", "tiny.png"}, "xyz"), 3);
  EXPECT_LT(other.cached, 8);  // another picture first: nothing but the text before it is shared
  EXPECT_EQ(other.numbers, ask(*cold, request({"gray.png", "tiny.png"}, "xyz"), 3).numbers);
}

INSTANTIATE_TEST_SUITE_P(models, resume_pictures,
                         testing::Values(Case{"moe_a"}, Case{"mini_a"}, Case{"demo-vl"}, Case{"demo-moe"}, Case{"demo-vl", "cuda"}),
                         case_name);

}  // namespace
}  // namespace heirloom::test
