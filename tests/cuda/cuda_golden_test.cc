// The whole golden kit through the GPU kernels on the emulator: every stage of every dump, as `verify --device cuda` would.
#include <gtest/gtest.h>

#include "cuda/cuda_cases.h"
#include "model/model_files.h"
#include "support/golden.h"
#include "tools/verify.h"

namespace heirloom::test {
namespace {

class emulator_golden : public testing::TestWithParam<const char*> {};

TEST_P(emulator_golden, every_stage_is_within_the_bound) {
  const std::string name = GetParam();
  const auto model_path = golden("models/" + name);
  const auto dumps = golden("dumps/" + name);
  HEIRLOOM_REQUIRE(model_path);
  HEIRLOOM_REQUIRE(dumps);
  auto backend = open_emulated();
  const model::ModelFiles files = model::open_model_files(model_path);
  const auto model = model::bind_model(files, *backend);
  tools::VerifyOptions options;
  options.reference = dumps;
  const tools::VerifyReport report = tools::verify(files, *model, options);
  EXPECT_GT(report.stages.size(), 20u);
  for (const tools::StageResult& stage : report.stages) {
    EXPECT_TRUE(stage.ok) << stage.dump << " " << stage.name << ": max_abs " << stage.max_abs << " of " << stage.max_ref
                          << ", rel_l2 " << stage.rel_l2 << " " << stage.note;
  }
}

INSTANTIATE_TEST_SUITE_P(kit, emulator_golden, testing::Values("dense_a", "dense_b", "moe_a", "moe_b", "mini_a", "mini_b"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace heirloom::test
