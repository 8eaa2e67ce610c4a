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
tools::VerifyReport expect_kit_passes(const std::string& name, ops::Backend& backend, bool bf16 = false, const char* dump = "") {
  const auto model_path = golden("models/" + name);
  const auto dumps = golden("dumps/" + name) / dump;
  const model::ModelFiles files = model::open_model_files(model_path);
  const auto model = model::bind_model(files, backend);
  tools::VerifyOptions options;
  options.reference = dumps;
  options.bf16 = bf16;
  if (bf16) options.rounding = golden("rounding");
  const tools::VerifyReport report = tools::verify(files, *model, options);
  EXPECT_GT(report.stages.size(), 20u);
  for (const tools::StageResult& stage : report.stages) {
    EXPECT_TRUE(stage.ok) << stage.dump << " " << stage.name << ": max_abs " << stage.max_abs << " of " << stage.max_ref
                          << ", rel_l2 " << stage.rel_l2 << " " << stage.note;
  }
  return report;
}

#define REQUIRE_KIT(name)                                  \
  HEIRLOOM_REQUIRE(golden("models/" + std::string(name))); \
  HEIRLOOM_REQUIRE(golden("dumps/" + std::string(name)))

class emulator_golden : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(emulator_golden, every_stage_is_within_the_bound) {
  REQUIRE_KIT(std::get<0>(GetParam()));
  auto backend = open_emulated(std::get<1>(GetParam()) ? cuda_cases().back() : cuda_cases().front());
  expect_kit_passes(std::get<0>(GetParam()), *backend);
}

INSTANTIATE_TEST_SUITE_P(kit, emulator_golden,
                         testing::Combine(testing::Values("dense_a", "dense_b", "moe_a", "moe_b", "mini_a", "mini_b"),
                                          testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + (std::get<1>(test.param) ? "_best" : "_sm20");
                         });

// BF16 products, by what rounding their operands does to the reference itself (tests/golden/rounding).
class emulator_golden_bf16 : public testing::TestWithParam<const char*> {};

TEST_P(emulator_golden_bf16, every_stage_moves_no_further_than_rounding_moves_the_reference) {
  REQUIRE_KIT(GetParam());
  const CudaCase& newest = cuda_cases().back();
  auto backend = open_emulated(newest, {}, cuda::GemmType::bf16);
  const bool pictures = std::string_view(GetParam()) == "mini_b";
  // Tokens one by one take the emulator minutes; their products are not rounded. A GPU takes all dumps.
  const char* dump = newest.hardware ? "" : pictures ? "mm_one_16x.safetensors" : "stage_p65.safetensors";
  const tools::VerifyReport report = expect_kit_passes(GetParam(), *backend, true, dump);
  EXPECT_GT(report.judged_by_rounding, report.stages.size() / 3) << "the products were not rounded";
}

INSTANTIATE_TEST_SUITE_P(kit, emulator_golden_bf16, testing::Values("dense_a", "dense_b", "moe_a", "moe_b", "mini_b"),
                         [](const auto& test) { return std::string(test.param); });

// Experts in host memory: prompts stream them through GPU buffers under a ceiling, tokens compute them on the CPU.
TEST(emulator_golden_hybrid, every_stage_is_within_the_bound_with_experts_in_host_memory) {
  for (const char* name : {"moe_a", "moe_b"}) {
    REQUIRE_KIT(name);
    cuda::CudaBackendOptions options;
    cpu::CpuBackendOptions cpu_options;
    cpu_options.threads = 1;
    options.expert_host = std::make_shared<engine::CpuExperts>(std::make_unique<cpu::CpuBackend>(cpu_options));
    const std::uint64_t ceiling = std::uint64_t{160} << 20;
    const CudaCase& best = cuda_cases().back();
    auto backend = open_emulated(best.hardware ? best : cuda_cases().front(), options, cuda::GemmType::f32, ceiling);
    expect_kit_passes(name, *backend);
    EXPECT_GT(backend->expert_stream()->host_bytes(), 0u);
    EXPECT_LE(backend->device().peak_bytes(), ceiling);
  }
}

}  // namespace
}  // namespace heirloom::test
