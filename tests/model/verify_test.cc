// Every stage of every golden checkpoint, on every CPU tier that this machine has. Reference: dumps of transformers.
#include "tools/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu_features.h"
#include "support/golden.h"
#include "support/temp_file.h"
#include "tools/rounding_bounds.h"

namespace heirloom::tools {
namespace {

std::vector<CpuTier> tiers() {
  std::vector<CpuTier> result;
  for (int tier = 0; tier <= static_cast<int>(best_cpu_tier()); ++tier) result.push_back(static_cast<CpuTier>(tier));
  return result;
}

void expect_all_ok(const std::string& checkpoint, const std::filesystem::path& model_path,
                   const std::filesystem::path& reference, CpuTier tier, double tolerance) {
  const model::ModelFiles files = model::open_model_files(model_path);
  cpu::CpuBackend backend({.threads = 2, .tier = tier});
  const std::unique_ptr<model::Model> model = model::bind_model(files, backend);
  const VerifyReport report = verify(files, *model, {reference, {}, tolerance});
  EXPECT_TRUE(report.ok()) << checkpoint << " on " << backend.description();
  for (const StageResult& stage : report.stages) {
    EXPECT_TRUE(stage.ok) << stage.dump << " " << stage.name << ": max_abs " << stage.max_abs << ", max_ref "
                          << stage.max_ref << ", rel_l2 " << stage.rel_l2 << " " << stage.note;
  }
}

class golden_checkpoint : public ::testing::TestWithParam<const char*> {};

// 3e-4 is twice what another float32 attention kernel or the recurrent form of the delta rule moves the reference itself.
TEST_P(golden_checkpoint, every_stage_is_within_float32_noise_on_every_tier) {
  const std::filesystem::path model = test::golden(std::string("models/") + GetParam() + "/config.json");
  const std::filesystem::path dumps = test::golden(std::string("dumps/") + GetParam());
  HEIRLOOM_REQUIRE(model);
  HEIRLOOM_REQUIRE(dumps);
  for (const CpuTier tier : tiers()) expect_all_ok(GetParam(), model.parent_path(), dumps, tier, 3e-4);
}

INSTANTIATE_TEST_SUITE_P(kit, golden_checkpoint,
                         ::testing::Values("dense_a", "dense_b", "moe_a", "moe_b", "mini_a", "mini_b"),
                         [](const auto& instance) { return std::string(instance.param); });

class converted_gguf : public ::testing::TestWithParam<const char*> {};

TEST_P(converted_gguf, of_llama_cpp_gives_the_reference_logits) {
  const std::filesystem::path model = test::golden(std::string("gguf/") + GetParam() + ".gguf");
  const std::filesystem::path logits = test::golden(std::string("gguf/") + GetParam() + ".logits.safetensors");
  HEIRLOOM_REQUIRE(model);
  HEIRLOOM_REQUIRE(logits);
  for (const CpuTier tier : tiers()) expect_all_ok(GetParam(), model, logits, tier, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(kit, converted_gguf, ::testing::Values("dense_b-f16", "moe_a-f16"), [](const auto& instance) {
  std::string name = instance.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

// A tolerance that float32 noise breaks everywhere: only the stage that the file knows may pass.
TEST(verify, judges_rounded_products_by_what_rounding_does_to_the_reference) {
  const std::filesystem::path model = test::golden("models/mini_b/config.json"), dump = test::golden("dumps/mini_b/mm_one_16x.safetensors");
  HEIRLOOM_REQUIRE(model);
  HEIRLOOM_REQUIRE(dump);
  const model::ModelFiles files = model::open_model_files(model.parent_path());
  cpu::CpuBackend backend({.threads = 2});
  const auto bound = model::bind_model(files, backend);
  const test::TempFolder folder;
  const auto judged = [&](const char* text, bool bf16) {
    const std::filesystem::path file = folder.path() / "mini_b.json";
    std::ofstream(file) << text;
    const VerifyReport report = verify(files, *bound, {dump, {}, 1e-12, bf16, bf16 ? folder.path() : std::filesystem::path{}});
    const auto stage = std::find_if(report.stages.begin(), report.stages.end(), [](const auto& s) { return s.name == "lm.layer3.out"; });
    EXPECT_GT(std::count_if(report.stages.begin(), report.stages.end(), [](const auto& s) { return !s.ok; }), 20);
    return std::pair(stage->ok, report.judged_by_rounding);
  };
  EXPECT_EQ(judged(R"({"mm_one_16x": {"lm.layer3.out": [0.01, 0.01]}})", true), std::pair(true, std::size_t{1}));
  EXPECT_EQ(judged(R"({"mm_one_16x": {"lm.layer3.out": [0.01, 1e-12]}})", true), std::pair(false, std::size_t{0}));
  EXPECT_EQ(judged(R"({"mm_one_16x": {"lm.layer3.out": [1e-12, 0.01]}})", true), std::pair(false, std::size_t{0}));
  EXPECT_EQ(judged(R"({"stage_p65": {"lm.layer3.out": [0.01, 0.01]}})", true), std::pair(false, std::size_t{0}));
  EXPECT_EQ(judged(R"({"mm_one_16x": {"lm.layer3.out": [0.01, 0.01]}})", false), std::pair(false, std::size_t{0}));
}

TEST(verify, refuses_bounds_of_rounding_that_are_none) {
  const test::TempFolder folder;
  for (const char* text : {"[]", "{", R"({"d": 1})", R"({"d": {"s": [1]}})", R"({"d": {"s": [1, "x"]}})", R"({"d": {"s": [-1, 1]}})",
                           R"({"d": {"s": [1, 2, 3]}})"}) {
    const std::filesystem::path file = folder.path() / "bounds.json";
    std::ofstream(file) << text;
    EXPECT_THROW(RoundingBounds{file}, Error) << text;
  }
}

TEST(verify, fails_loudly_when_a_dump_belongs_to_another_model) {
  const std::filesystem::path model = test::golden("models/mini_b/config.json");
  const std::filesystem::path dump = test::golden("gguf/moe_a-f16.logits.safetensors");
  HEIRLOOM_REQUIRE(model);
  HEIRLOOM_REQUIRE(dump);
  const model::ModelFiles files = model::open_model_files(model.parent_path());
  cpu::CpuBackend backend({.threads = 1});
  const auto bound = model::bind_model(files, backend);
  bool failed = false;
  try {
    failed = !verify(files, *bound, {dump, {}, 1e-3}).ok();
  } catch (const Error& error) {
    failed = error.kind() == ErrorKind::usage;
  }
  EXPECT_TRUE(failed);
}

}  // namespace
}  // namespace heirloom::tools
