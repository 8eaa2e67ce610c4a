// Every stage of every golden checkpoint, on every CPU tier that this machine has. Reference: dumps of transformers.
#include "tools/verify.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu_features.h"
#include "support/golden.h"

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
