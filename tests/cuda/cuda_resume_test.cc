// Resuming on a GPU: the kernels round by the shape of a step, the engine's fixed steps make up for it. An answer that starts from
// a snapshot, in memory or on disk, equals that of a run from the beginning, bit for bit. On the emulator for short prompts,
// and on the GPU where there is one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "base/mapped_file.h"
#include "cuda/cuda_cases.h"
#include "engine/fixed_steps.h"
#include "engine/prompt_builder.h"
#include "engine/scheduler.h"
#include "engine/text_side.h"
#include "model/model_files.h"
#include "support/golden.h"

namespace heirloom::test {
namespace {

namespace fs = std::filesystem;

/// A model on a GPU backend with one scheduler that resumes and one that never can.
class GpuEngine {
 public:
  GpuEngine(const fs::path& path, const CudaCase& where, const fs::path& disk = {})
      : files_(model::open_model_files(path)),
        tokenizer_(engine::open_tokenizer(files_)),
        prompts_(files_, tokenizer_, {}),
        backend_(open_emulated(where)),
        model_(model::bind_model(files_, *backend_)),
        pool_(*backend_, model_->state_shape(DType::f32)),
        warm_cache_(pool_, options(256 << 20, disk)),
        cold_cache_(pool_, options(1, {})),  // fixed steps, and no room for a snapshot
        warm_(*model_, pool_, warm_cache_, {}),
        cold_(*model_, pool_, cold_cache_, {}) {}

  struct Answer {
    std::vector<float> numbers;
    std::int64_t cached = 0;
  };
  Answer ask(const engine::Prompt& prompt, int tokens) { return ask(warm_, prompt, tokens); }
  Answer cold(const engine::Prompt& prompt, int tokens) { return ask(cold_, prompt, tokens); }

  engine::Prompt text(std::size_t tokens, std::uint32_t seed) const {
    std::mt19937 random(seed);
    engine::Prompt prompt;
    for (std::size_t i = 0; i < tokens; ++i) prompt.token_ids.push_back(static_cast<std::int32_t>(random() % 300));
    return finished(std::move(prompt));
  }
  static engine::Prompt followed(engine::Prompt prompt, const engine::Prompt& more) {
    prompt.token_ids.insert(prompt.token_ids.end(), more.token_ids.begin(), more.token_ids.end());
    return finished(std::move(prompt));
  }
  engine::Prompt with_pictures(const std::vector<fs::path>& pictures, const std::string& after) const {
    Request request;
    std::string text = "ab";
    for (const fs::path& picture : pictures) {
      const MappedFile file(picture);
      request.images.push_back({{file.bytes().begin(), file.bytes().end()}, picture.string()});
      text += "<|vision_start|><|image_pad|><|vision_end|>cd";
    }
    request.raw_text = text + after;
    return prompts_.build(request).prompt;
  }

 private:
  engine::PrefixCache::Options options(std::uint64_t bytes, const fs::path& disk) const {
    engine::PrefixCache::Options options;
    options.memory_bytes = bytes;
    options.fixed_step = 256;
    options.disk_folder = disk;
    options.disk_bytes = 256 << 20;
    options.vocab_size = static_cast<std::size_t>(model_->config().text.vocab_size);
    return options;
  }
  static engine::Prompt finished(engine::Prompt prompt) {
    engine::set_plain_positions(prompt);
    engine::set_symbols(prompt);
    return prompt;
  }
  Answer ask(engine::Scheduler& scheduler, const engine::Prompt& prompt, int tokens) {
    Answer answer;
    engine::Job job;
    job.prompt = prompt;
    job.max_tokens = tokens;
    job.ignore_eos = true;
    job.top_logprobs = 20;
    job.text.emplace(tokenizer_, false, std::vector<std::string>{});
    job.on_token = [&](const TokenEvent& event) {
      answer.numbers.push_back(static_cast<float>(event.id));
      for (const auto& top : event.top) answer.numbers.push_back(top.logprob);
    };
    const RequestResult result = scheduler.submit(std::move(job))->wait();
    EXPECT_EQ(result.finish_reason, FinishReason::length) << (result.error ? result.error->what() : "");
    answer.cached = result.cached_tokens;
    return answer;
  }

  model::ModelFiles files_;
  text::Tokenizer tokenizer_;
  engine::PromptBuilder prompts_;
  std::unique_ptr<cuda::CudaBackend> backend_;
  std::unique_ptr<model::Model> model_;
  engine::StatePool pool_;
  engine::PrefixCache warm_cache_, cold_cache_;
  engine::Scheduler warm_, cold_;
};

fs::path bundled(const std::string& name) { return fs::path(HEIRLOOM_SOURCE_DIR) / "models" / (name + ".gguf"); }

class gpu_resume : public testing::TestWithParam<const char*> {};

TEST_P(gpu_resume, equals_a_cold_run_at_every_depth_in_memory_and_on_disk) {
  const std::string name = GetParam();
  const fs::path path = name.starts_with("demo") ? bundled(name) : golden("models/" + name);
  HEIRLOOM_REQUIRE(path);
  const CudaCase& where = cuda_cases().back();
  std::vector<std::size_t> depths = {1, 33, 64, 65};
  if (name == "demo-moe") depths = {65};  // eight layers: the emulator takes its time
  if (where.hardware) depths = {1, 31, 32, 33, 63, 64, 65, 255, 256, 257, 2047, 2048, 2049};
  const fs::path folder = fs::temp_directory_path() / fmt::format("heirloom-gpu-resume-{}-{}", name, ::getpid());
  fs::remove_all(folder);
  std::map<std::size_t, GpuEngine::Answer> expected;
  const auto usable = [](std::size_t depth) { return engine::fixed_end_at_or_below(static_cast<std::int64_t>(depth), 256); };
  {
    GpuEngine gpu(path, where, folder);
    for (const std::size_t depth : depths) {
      const engine::Prompt prefix = gpu.text(depth, static_cast<std::uint32_t>(depth)), longer = gpu.followed(prefix, gpu.text(9, 77));
      expected[depth] = gpu.cold(longer, 3);
      EXPECT_EQ(expected[depth].cached, 0);
      gpu.ask(prefix, 1);
      const GpuEngine::Answer resumed = gpu.ask(longer, 3);
      EXPECT_EQ(resumed.cached, usable(depth));
      EXPECT_EQ(resumed.numbers, expected[depth].numbers) << depth;
      const GpuEngine::Answer repeated = gpu.ask(longer, 3);
      EXPECT_EQ(repeated.cached, longer.size());
      EXPECT_EQ(repeated.numbers, expected[depth].numbers) << depth;
    }
  }
  GpuEngine restarted(path, where, folder);
  for (const std::size_t depth : depths) {
    const engine::Prompt longer = restarted.followed(restarted.text(depth, static_cast<std::uint32_t>(depth)), restarted.text(9, 77));
    const GpuEngine::Answer repeated = restarted.ask(longer, 3);
    EXPECT_EQ(repeated.cached, longer.size());
    EXPECT_EQ(repeated.numbers, expected[depth].numbers) << depth;
  }
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(models, gpu_resume, testing::Values("mini_b", "demo-moe", "dense_a", "moe_b"), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(gpu_resume_pictures, equal_a_cold_run) {
  const fs::path path = golden("models/mini_b");
  const fs::path pictures = golden("images");
  HEIRLOOM_REQUIRE(path);
  HEIRLOOM_REQUIRE(pictures);
  GpuEngine gpu(path, cuda_cases().back());
  const fs::path first = pictures / "tiny.png", second = pictures / "gray.png";
  std::int64_t reused = 0;
  for (const std::vector<fs::path>& shown : {std::vector<fs::path>{first}, {first, second}}) {
    for (const std::string& after : {std::string("x"), std::string(66, 'y') + "z", std::string(66, 'y') + "w"}) {
      const engine::Prompt prompt = gpu.with_pictures(shown, after);
      const GpuEngine::Answer answer = gpu.ask(prompt, 2);
      EXPECT_EQ(answer.numbers, gpu.cold(prompt, 2).numbers) << after;
      reused += answer.cached;
    }
  }
  EXPECT_GT(reused, 0);
}

}  // namespace
}  // namespace heirloom::test
