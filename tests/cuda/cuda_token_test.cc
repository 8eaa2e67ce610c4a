// Experts of one token in a step that may be recorded (sm_90: router_logits, expert_hidden, expert_sum) against the scalar specification
// and against the kernels of other steps.
#include <gtest/gtest.h>

#include <limits>

#include "cuda/cuda_cases.h"

namespace heirloom::test {
namespace {

struct ExpertCase {
  const char* name;
  DType type;
  int hidden, experts, inner, top_k;
  bool shared;
  bool taken = true;  // by the kernels for one token
};

constexpr float kEps = 1e-6f;

std::vector<CudaCase> token_devices() {
  std::vector<CudaCase> devices{{"sm90", "sm90", emulator::Order::ascending, true}, {"sm90_descending", "sm90", emulator::Order::descending, true}};
  if (cuda::list_devices().front().usable) devices.push_back({"gpu", "", emulator::Order::ascending, true, true});
  return devices;
}

// The residual stream through a norm, experts and the addition; `equals`: that many experts from the second on have the same logit.
struct TokenExperts {
  ExpertCase c;
  std::unique_ptr<cuda::CudaBackend> backend;
  MadeWeight router, gate, up, down, shared_gate, shared_up, shared_down, shared_router;
  std::vector<std::unique_ptr<ops::Weight>> kept;
  ops::MoeWeights weights{};
  Both norm, hidden, normed, out;

  TokenExperts(const ExpertCase& expert_case, const CudaCase& device, int equals = 0)
      : c(expert_case), backend(open_emulated(device)), router(make_weight(DType::f32, 1, c.experts, c.hidden, 1)),
        gate(make_weight(c.type, c.experts, c.inner, c.hidden, 2)), up(make_weight(c.type, c.experts, c.inner, c.hidden, 3)),
        down(make_weight(c.type, c.experts, c.hidden, c.inner, 4)), shared_gate(make_weight(c.type, 1, c.inner, c.hidden, 5)),
        shared_up(make_weight(c.type, 1, c.inner, c.hidden, 6)), shared_down(make_weight(c.type, 1, c.hidden, c.inner, 7)),
        shared_router(make_weight(DType::f32, 1, 1, c.hidden, 8)), norm(*backend, 1, c.hidden, 9), hidden(*backend, 1, c.hidden, 10),
        normed(*backend, 1, c.hidden, 11), out(*backend, 1, c.hidden, 12) {
    const auto row = static_cast<std::size_t>(c.hidden);
    for (std::size_t e = 2; e < 1 + static_cast<std::size_t>(equals); ++e) {
      std::memcpy(router.bytes.data() + e * row * 4, router.bytes.data() + row * 4, row * 4);
      std::copy_n(router.floats.begin() + c.hidden, row, router.floats.begin() + static_cast<std::ptrdiff_t>(e * row));
    }
    const auto load = [&](MadeWeight& made) {
      kept.push_back(backend->load_weight(made.data));
      return kept.back().get();
    };
    weights = {load(router), load(gate), load(up), load(down), nullptr, nullptr, nullptr, nullptr, c.top_k};
    if (c.shared) {
      weights.shared_gate = load(shared_gate);
      weights.shared_up = load(shared_up);
      weights.shared_down = load(shared_down);
      weights.shared_router = load(shared_router);
    }
  }

  ops::StepPlan plan() const {
    ops::StepPlan plan;
    plan.sequences = {{0, 1, 7, nullptr, nullptr, {}, {}}};
    plan.num_rows = 1;
    return plan;
  }
  // The layer `steps` times; without `add` what the experts give.
  std::vector<float> on_device(std::uint64_t key, int steps, bool add = true) {
    for (int step = 0; step < steps; ++step) {
      const ops::StepPlan step_plan = plan();
      if (!backend->begin_step(step_plan, key)) {
        backend->rms_norm(hidden.device(), norm.device_data(), kEps, normed.device());
        backend->moe_ffn(normed.device(), weights, out.device(), nullptr);
        if (add) backend->add_rms_norm(hidden.device(), out.device(), norm.device_data(), kEps, normed.device());
      }
      backend->end_step();
    }
    return add ? hidden.downloaded() : out.downloaded();
  }
  std::vector<float> reference(int steps, bool add = true) {
    const std::vector<float> zeros(static_cast<std::size_t>(c.hidden));  // a shared expert that gives nothing
    const auto shared = [&](const MadeWeight& made) { return c.shared ? made.floats.data() : zeros.data(); };
    const ops::reference::MoeMatrices matrices{router.floats.data(), gate.floats.data(), up.floats.data(), down.floats.data(), shared(shared_gate),
                                               shared(shared_up), shared(shared_down), shared(shared_router), c.experts, c.inner,
                                               c.shared ? c.inner : 1, c.top_k};
    for (int step = 0; step < steps; ++step) {
      ops::reference::rms_norm(hidden.host(), norm.values().data(), kEps, normed.host());
      ops::reference::moe_ffn(normed.host(), matrices, out.host(), nullptr);
      if (add) ops::reference::add_rms_norm(hidden.host(), out.host(), norm.values().data(), kEps, normed.host());
    }
    return add ? hidden.values() : out.values();
  }
};

double worst_difference(const std::vector<float>& got, const std::vector<float>& wanted) {
  double largest = 1e-3, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    worst = error <= worst ? worst : error;  // a NaN stays
  }
  return worst / largest;
}

class token_experts : public testing::TestWithParam<ExpertCase> {};

TEST_P(token_experts, match_the_reference_and_the_other_kernels) {
  for (const CudaCase& device : token_devices()) {
    SCOPED_TRACE(device.name);
    TokenExperts fused(GetParam(), device), plain(GetParam(), device), summed(GetParam(), device);
    if (!fused.backend->device().info().clusters) continue;
    const int steps = device.order == emulator::Order::descending ? 1 : 3;  // two as they are, one recorded
    const std::vector<float> got = fused.on_device(1, steps);
    EXPECT_LE(worst_difference(got, plain.on_device(0, steps)), 5e-3) << "the other kernels";
    EXPECT_LE(worst_difference(got, TokenExperts(GetParam(), device).reference(steps)), 6e-2) << "the specification";
    const std::uint64_t before = summed.backend->device().launches();
    const std::vector<float> experts = summed.on_device(1, 1, false);
    EXPECT_EQ(summed.backend->device().launches() - before, GetParam().taken ? 3u : 4u);
    EXPECT_LE(worst_difference(experts, TokenExperts(GetParam(), device).reference(1, false)), 3e-2) << "without the residual stream";
  }
}

INSTANTIATE_TEST_SUITE_P(every_shape, token_experts,
                         testing::Values(ExpertCase{"q4_0", DType::q4_0, 512, 24, 128, 3, true}, ExpertCase{"q8_0", DType::q8_0, 256, 7, 96, 1, true},
                                         ExpertCase{"no_shared_expert", DType::q4_0, 256, 33, 256, 5, false},
                                         ExpertCase{"wide", DType::q4_0, 2304, 9, 160, 2, true},
                                         ExpertCase{"many_chosen", DType::q4_0, 256, 130, 128, 8, true},
                                         ExpertCase{"inner_of_512", DType::q8_0, 256, 5, 512, 2, true},
                                         ExpertCase{"all_chosen", DType::q8_0, 256, 4, 128, 4, true}),
                         [](const auto& test) { return std::string(test.param.name); });
// Shapes and types that the kernels do not take.
INSTANTIATE_TEST_SUITE_P(other_shape, token_experts,
                         testing::Values(ExpertCase{"hidden_of_96", DType::q8_0, 96, 5, 96, 2, true, false},
                                         ExpertCase{"inner_of_64", DType::q4_0, 256, 5, 64, 2, true, false},
                                         ExpertCase{"k_quants", DType::q4_k, 256, 5, 256, 2, true, false}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(token_choice, the_lower_index_comes_first_among_equals) {
  for (const CudaCase& device : token_devices()) {
    SCOPED_TRACE(device.name);
    const ExpertCase c{"equals", DType::q8_0, 256, 40, 96, 3, true};
    TokenExperts fused(c, device, 39);
    if (!fused.backend->device().info().clusters) continue;
    EXPECT_LE(worst_difference(fused.on_device(1, 1, false), TokenExperts(c, device, 39).reference(1, false)), 3e-2);
  }
}

TEST(token_choice, what_is_not_a_number_stays_one) {
  const ExpertCase c{"nan", DType::q4_0, 256, 20, 96, 3, true};
  for (const CudaCase& device : token_devices()) {
    SCOPED_TRACE(device.name);
    TokenExperts fused(c, device);
    if (!fused.backend->device().info().clusters) continue;
    std::vector<float> x(static_cast<std::size_t>(c.hidden), std::numeric_limits<float>::quiet_NaN());
    fused.backend->upload(fused.hidden.device().data, x.data(), x.size() * 4);
    const std::vector<float> got = fused.on_device(1, 1);
    EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[255]));
  }
}

}  // namespace
}  // namespace heirloom::test
