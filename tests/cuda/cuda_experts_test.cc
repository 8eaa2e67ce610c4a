// Experts on tensor cores, in the one-token form, and in host memory (streamed and computed there), against the scalar
// specification.
#include <gtest/gtest.h>

#include "base/check.h"
#include "cuda/cuda_cases.h"
#include "engine/cpu_experts.h"

namespace heirloom::test {
namespace {

// The newest kernels: a GPU's where there is one, else the emulator's sm_90.
const CudaCase& newest() { return cuda_cases().back(); }

std::vector<CudaCase> floor_and_gpu() {
  std::vector<CudaCase> cases{cuda_cases().front()};
  if (newest().hardware) cases.push_back(newest());
  return cases;
}

// One mixture-of-experts layer on both sides.
struct MoeLayer {
  int hidden, experts, inner, shared, top_k;
  MadeWeight router, gate, up, down, shared_gate, shared_up, shared_down, shared_router;

  MoeLayer(DType type, int hidden_, int experts_, int inner_, int shared_, int top_k_, DType shared_type = DType::f32)
      : hidden(hidden_), experts(experts_), inner(inner_), shared(shared_), top_k(top_k_),
        router(make_weight(DType::f32, 1, experts, hidden, 1)), gate(make_weight(type, experts, inner, hidden, 2)),
        up(make_weight(type, experts, inner, hidden, 3)), down(make_weight(type, experts, hidden, inner, 4)),
        shared_gate(make_weight(shared_type, 1, shared, hidden, 5)), shared_up(make_weight(shared_type, 1, shared, hidden, 6)),
        shared_down(make_weight(shared_type, 1, hidden, shared, 7)), shared_router(make_weight(DType::f32, 1, 1, hidden, 8)) {}

  ops::reference::MoeMatrices matrices() const {
    return {router.floats.data(),    gate.floats.data(),      up.floats.data(),          down.floats.data(), shared_gate.floats.data(),
            shared_up.floats.data(), shared_down.floats.data(), shared_router.floats.data(), experts,          inner,
            shared,                  top_k};
  }
};

struct LoadedLayer {
  std::vector<std::unique_ptr<ops::Weight>> kept;
  ops::MoeWeights weights{};

  LoadedLayer(ops::Backend& backend, const MoeLayer& layer) {
    const auto load = [&](const MadeWeight& made) {
      kept.push_back(backend.load_weight(made.data));
      return kept.back().get();
    };
    weights = {load(layer.router),    load(layer.gate),        load(layer.up),          load(layer.down),         load(layer.shared_gate),
               load(layer.shared_up), load(layer.shared_down), load(layer.shared_router), layer.top_k};
  }
};

void expect_layer(ops::Backend& backend, const MoeLayer& layer, const ops::MoeWeights& weights, std::int64_t rows, double tolerance,
                  const std::string& what) {
  Both x(backend, rows, layer.hidden, 9), out(backend, rows, layer.hidden, 10);
  backend.moe_ffn(x.device(), weights, out.device(), nullptr);
  ops::reference::moe_ffn(x.host(), layer.matrices(), out.host(), nullptr);
  out.expect_equal(what + ", " + std::to_string(rows) + " rows", tolerance);
}

class emulator_tensor_cores : public testing::TestWithParam<DType> {};

// Operands are rounded to 8 bits of mantissa; sums are not. 120 rows take the tiles of 128 pairs.
TEST_P(emulator_tensor_cores, experts_are_near_the_reference) {
  auto backend = open_emulated(newest(), {}, cuda::GemmType::bf16);
  const MoeLayer layer(GetParam(), 256, 2, 256, 32, 2);
  const LoadedLayer loaded(*backend, layer);
  for (const std::int64_t rows : {9, 120}) {
    const std::uint64_t before = backend->device().launches();
    expect_layer(*backend, layer, loaded.weights, rows, 1e-2, "experts");
    EXPECT_GT(backend->device().launches(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(every_type, emulator_tensor_cores,
                         testing::Values(DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(emulator_experts, odd_sizes_are_near_the_reference_on_tensor_cores) {
  auto backend = open_emulated(newest(), {}, cuda::GemmType::bf16);
  const MoeLayer layer(DType::q4_0, 96, 9, 160, 32, 3);
  const LoadedLayer loaded(*backend, layer);
  expect_layer(*backend, layer, loaded.weights, 37, 1e-2, "experts");
}

// One token, shared expert shaped like the others: four kernels.
TEST(emulator_experts, one_token_takes_few_kernels_and_matches_the_reference) {
  for (const CudaCase& c : {cuda_cases().front(), newest()}) {
    for (const DType type : {DType::q4_0, DType::q4_k, DType::q8_0}) {
      auto backend = open_emulated(c);
      const MoeLayer layer(type, 256, 7, 256, 256, 3, type);
      const LoadedLayer loaded(*backend, layer);
      backend->synchronize();
      const std::uint64_t before = backend->device().launches();
      // 8-bit activations err by up to 1/254 of a group's largest value: see kernels/moe_test.cc.
      const double tolerance = takes_8_bit_x(*backend, *loaded.weights.gate) ? 2e-2 : 2e-5;
      expect_layer(*backend, layer, loaded.weights, 1, tolerance, std::string(c.name) + " " + std::string(dtype_name(type)));
      EXPECT_EQ(backend->device().launches() - before, 4u);
    }
  }
}

TEST(emulator_experts, many_pairs_are_sorted_by_expert) {
  auto backend = open_emulated();
  const MoeLayer layer(DType::f32, 32, 33, 32, 32, 5);
  const LoadedLayer loaded(*backend, layer);
  expect_layer(*backend, layer, loaded.weights, 130, 2e-5, "650 pairs");  // three chunks of the sort
}

std::shared_ptr<engine::CpuExperts> cpu_experts() {
  cpu::CpuBackendOptions options;
  options.threads = 1;
  return std::make_shared<engine::CpuExperts>(std::make_unique<cpu::CpuBackend>(options));
}

class emulator_host_experts : public testing::TestWithParam<DType> {};

TEST_P(emulator_host_experts, stream_for_prompts_and_stay_for_tokens) {
  for (const CudaCase& c : floor_and_gpu()) {
    cuda::CudaBackendOptions options;
    options.expert_host = cpu_experts();
    options.host_expert_rows = 3;
    auto backend = open_emulated(c, options);
    const int hidden = 256, inner = 256;
    const double exact = GetParam() == DType::q2_k ? 3e-3 : 2e-5;  // the CPU keeps q2_k as f16
    const MoeLayer first(GetParam(), hidden, 3, inner, 32, 2), second(GetParam(), hidden, 3, inner, 64, 2);
    // Four layers through at most two layers' worth of buffers.
    const LoadedLayer layers[] = {{*backend, first}, {*backend, second}, {*backend, second}, {*backend, first}};
    const auto pass = [&](std::int64_t rows, double tolerance) {
      for (const LoadedLayer& layer : layers) {
        expect_layer(*backend, &layer == layers || &layer == layers + 3 ? first : second, layer.weights, rows, tolerance,
                     std::string(c.name) + ", layer " + std::to_string(&layer - layers));
      }
    };
    pass(9, exact);
    EXPECT_EQ(backend->expert_stream()->slots(), cuda::ExpertStream::kMaxSlots);
    // The CPU computes quantised weights with activations rounded to 8 bits.
    pass(3, 3e-2);
    expect_layer(*backend, second, layers[2].weights, 5, exact, "out of order");
  }
}

INSTANTIATE_TEST_SUITE_P(every_type, emulator_host_experts, testing::ValuesIn(weight_types()),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(emulator_experts, of_the_first_layers_stay_on_the_gpu_where_they_fit) {
  cuda::CudaBackendOptions options;
  options.expert_host = cpu_experts();
  const MoeLayer layer(DType::q8_0, 64, 5, 32, 32, 2);
  const std::uint64_t tensor_bytes = layer.gate.bytes.size();
  options.expert_bytes = tensor_bytes * (2 * 3 + cuda::ExpertStream::kMaxSlots);
  auto backend = open_emulated(cuda_cases().front(), options);
  const LoadedLayer layers[] = {{*backend, layer}, {*backend, layer}, {*backend, layer}};
  EXPECT_EQ(backend->expert_stream()->host_bytes(), 3 * tensor_bytes);
  for (const LoadedLayer& loaded : layers) expect_layer(*backend, layer, loaded.weights, 40, 2e-5, "prompt");
  for (const LoadedLayer& loaded : layers) expect_layer(*backend, layer, loaded.weights, 1, 3e-2, "token");
}

TEST(emulator_experts, stream_to_tensor_cores) {
  cuda::CudaBackendOptions options;
  options.expert_host = cpu_experts();
  auto backend = open_emulated(newest(), options, cuda::GemmType::bf16);
  const MoeLayer layer(DType::q4_0, 64, 5, 96, 32, 2);
  const LoadedLayer loaded(*backend, layer);
  expect_layer(*backend, layer, loaded.weights, 40, 1e-2, "experts");
}

TEST(emulator_experts, that_leave_no_room_for_their_buffers_are_refused_with_the_numbers) {
  cuda::CudaBackendOptions options;
  options.expert_host = cpu_experts();
  auto backend = open_emulated(cuda_cases().front(), options, cuda::GemmType::f32, std::uint64_t{1} << 20);
  const MadeWeight made = make_weight(DType::f32, 4, 512, 256, 1);  // 2 MiB
  const auto weight = backend->load_weight(made.data);
  try {
    backend->expert_stream()->open();
    FAIL() << "it fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("streamed experts"), std::string::npos) << error.what();
  }
}

TEST(emulator_experts, the_stream_tells_when_each_tensor_was_copied_and_used) {
  cuda::CudaBackendOptions options;
  options.expert_host = cpu_experts();
  auto backend = open_emulated(cuda_cases().front(), options);
  const MoeLayer layer(DType::q8_0, 64, 3, 32, 32, 2);
  const LoadedLayer layers[] = {{*backend, layer}, {*backend, layer}, {*backend, layer}};
  backend->expert_stream()->start_trace();
  for (const LoadedLayer& loaded : layers) expect_layer(*backend, layer, loaded.weights, 40, 2e-5, "experts");
  const auto trace = backend->expert_stream()->stop_trace();
  ASSERT_EQ(trace.size(), 9u);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    EXPECT_EQ(trace[i].tensor, i);
    EXPECT_LE(trace[i].copy_begin, trace[i].copy_end);
    EXPECT_LE(trace[i].copy_end, trace[i].use_begin);
    EXPECT_LE(trace[i].use_begin, trace[i].use_end);
  }
}

}  // namespace
}  // namespace heirloom::test
