// The whole golden kit through the GPU kernels on the emulator: every stage of every dump, as `verify --device cuda` would.
#include <gtest/gtest.h>

#include "cuda/cuda_cases.h"
#include "engine/cpu_experts.h"
#include "model/model_files.h"
#include "support/golden.h"
#include "tools/verify.h"

namespace heirloom::test {
namespace {

// The last case is the best of what the machine has: a GPU, or the emulator's sm_90 kernels.
void expect_kit_passes(const std::string& name, ops::Backend& backend) {
  const auto model_path = golden("models/" + name);
  const auto dumps = golden("dumps/" + name);
  HEIRLOOM_REQUIRE(model_path);
  HEIRLOOM_REQUIRE(dumps);
  const model::ModelFiles files = model::open_model_files(model_path);
  const auto model = model::bind_model(files, backend);
  tools::VerifyOptions options;
  options.reference = dumps;
  const tools::VerifyReport report = tools::verify(files, *model, options);
  EXPECT_GT(report.stages.size(), 20u);
  for (const tools::StageResult& stage : report.stages) {
    EXPECT_TRUE(stage.ok) << stage.dump << " " << stage.name << ": max_abs " << stage.max_abs << " of " << stage.max_ref
                          << ", rel_l2 " << stage.rel_l2 << " " << stage.note;
  }
}

class emulator_golden : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(emulator_golden, every_stage_is_within_the_bound) {
  auto backend = open_emulated(std::get<1>(GetParam()) ? cuda_cases().back() : cuda_cases().front());
  expect_kit_passes(std::get<0>(GetParam()), *backend);
}

INSTANTIATE_TEST_SUITE_P(kit, emulator_golden,
                         testing::Combine(testing::Values("dense_a", "dense_b", "moe_a", "moe_b", "mini_a", "mini_b"),
                                          testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + (std::get<1>(test.param) ? "_best" : "_sm20");
                         });

// Experts in host memory: prompts stream them through GPU buffers under a ceiling, tokens compute them on the CPU.
TEST(emulator_golden_hybrid, every_stage_is_within_the_bound_with_experts_in_host_memory) {
  for (const char* name : {"moe_a", "moe_b"}) {
    cuda::CudaBackendOptions options;
    cpu::CpuBackendOptions cpu_options;
    cpu_options.threads = 1;
    options.expert_host = std::make_shared<engine::CpuExperts>(std::make_unique<cpu::CpuBackend>(cpu_options));
    const std::uint64_t ceiling = std::uint64_t{160} << 20;
    const CudaCase& best = cuda_cases().back();
    auto backend = open_emulated(best.hardware ? best : cuda_cases().front(), options, cuda::GemmType::f32, ceiling);
    expect_kit_passes(name, *backend);
    if (testing::Test::IsSkipped()) return;
    EXPECT_GT(backend->expert_stream()->host_bytes(), 0u);
    EXPECT_LE(backend->device().peak_bytes(), ceiling);
  }
}

}  // namespace
}  // namespace heirloom::test
