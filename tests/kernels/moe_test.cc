// The mixture-of-experts layer on every tier of this machine against the scalar specification.
#include "backend/cpu/kernels/moe/moe_experts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/weight/packed_weight.h"
#include "kernels/weight_maker.h"
#include "ops/reference.h"

namespace heirloom::test {
namespace {

constexpr std::int64_t kHidden = 256, kInter = 64, kExperts = 12;
constexpr int kTopK = 4;

struct Case {
  CpuTier tier;
  DType type;  // of the experts; the router is f32 as in files
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (CpuTier tier : kCpuTiers) {
    if (tier > best_cpu_tier()) continue;
    for (DType type : {DType::q4_0, DType::q8_0, DType::bf16}) all.push_back({tier, type});
  }
  return all;
}
std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(cpu_tier_name(info.param.tier)) + "_" + std::string(dtype_name(info.param.type));
}

struct Layer {
  std::vector<MadeWeight> made;
  std::vector<std::unique_ptr<ops::Weight>> packed;
  ops::MoeWeights weights{};
  ops::reference::MoeMatrices matrices{};

  Layer(ThreadPool& pool, CpuTier tier, DType type) {
    const auto add = [&](DType t, std::int64_t experts, std::int64_t rows, std::int64_t cols) {
      made.push_back(make_weight(t, experts, rows, cols, static_cast<unsigned>(made.size() + 1)));
    };
    add(DType::f32, 1, kExperts, kHidden);
    add(type, kExperts, kInter, kHidden);
    add(type, kExperts, kInter, kHidden);
    add(type, kExperts, kHidden, kInter);
    add(type, 1, 96, kHidden);
    add(type, 1, 96, kHidden);
    add(type, 1, kHidden, 96);
    add(DType::f32, 1, 1, kHidden);
    for (const auto& m : made) packed.push_back(cpu::pack_weight(m.data, pool, tier));
    weights = {packed[0].get(), packed[1].get(), packed[2].get(), packed[3].get(), packed[4].get(),
               packed[5].get(), packed[6].get(), packed[7].get(), kTopK};
    matrices = {made[0].floats.data(), made[1].floats.data(), made[2].floats.data(), made[3].floats.data(),
                made[4].floats.data(), made[5].floats.data(), made[6].floats.data(), made[7].floats.data(),
                kExperts, kInter, 96, kTopK};
  }
};

class Moe : public testing::TestWithParam<Case> {};

TEST_P(Moe, matches_the_specification) {
  ThreadPool pool(2);
  const auto [tier, type] = GetParam();
  const Layer layer(pool, tier, type);
  for (const std::int64_t tokens : {1, 2, 5, 40}) {
    const auto n = static_cast<std::size_t>(tokens);
    std::vector<float> x = random_floats(n * kHidden, 21);
    struct Result {
      std::vector<float> out, logits, weights, experts, shared, gate, norms;
      std::vector<std::int32_t> ids;
      explicit Result(std::size_t t)
          : out(t * kHidden), logits(t * kExperts), weights(t * kTopK), experts(t * kHidden), shared(t * kHidden), gate(t),
            norms(t * kTopK), ids(t * kTopK) {}
      ops::MoeTaps taps() {
        return {logits.data(), ids.data(), weights.data(), experts.data(), shared.data(), gate.data(), norms.data()};
      }
    } got(n), expected(n);
    const ops::MoeTaps got_taps = got.taps(), expected_taps = expected.taps();
    cpu::moe_experts(pool, tier, {x.data(), tokens, kHidden}, layer.weights, {got.out.data(), tokens, kHidden}, &got_taps);
    ops::reference::moe_ffn({x.data(), tokens, kHidden}, layer.matrices, {expected.out.data(), tokens, kHidden}, &expected_taps);
    EXPECT_EQ(got.ids, expected.ids);
    // Float experts differ by rounding only; 8-bit activations err by up to 1/254 of a group's largest value, which adds
    // up like noise over the sum: 2 % of the largest output is five times what was seen.
    const float relative = type == DType::bf16 ? 1e-5f : 2e-2f;
    const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b, float tolerance, const char* name) {
      float most = 0.0f;
      for (float v : b) most = std::max(most, std::fabs(v));
      ASSERT_GT(most, 0.0f);
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * most) << name << " " << i << " tokens " << tokens;
    };
    compare(got.logits, expected.logits, 1e-5f, "logits");
    compare(got.weights, expected.weights, 1e-5f, "weights");
    compare(got.gate, expected.gate, 1e-5f, "gate");
    compare(got.experts, expected.experts, relative, "experts");
    compare(got.shared, expected.shared, relative, "shared");
    compare(got.norms, expected.norms, relative, "norms");
    compare(got.out, expected.out, relative, "out");
  }
}

TEST_P(Moe, gives_a_token_the_same_bits_alone_and_among_others) {
  ThreadPool pool(2);
  const auto [tier, type] = GetParam();
  const Layer layer(pool, tier, type);
  constexpr std::int64_t kTokens = 65;
  std::vector<float> x = random_floats(kTokens * kHidden, 22);
  std::vector<float> all(x.size());
  cpu::moe_experts(pool, tier, {x.data(), kTokens, kHidden}, layer.weights, {all.data(), kTokens, kHidden}, nullptr);
  for (const std::int64_t rows : {1, 3, 8}) {
    for (std::int64_t first = 0; first + rows <= kTokens; first += 17) {
      std::vector<float> out(static_cast<std::size_t>(rows * kHidden));
      cpu::moe_experts(pool, tier, {x.data() + first * kHidden, rows, kHidden}, layer.weights, {out.data(), rows, kHidden}, nullptr);
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], all[static_cast<std::size_t>(first * kHidden) + i]) << i;
    }
  }
}

TEST_P(Moe, works_without_a_shared_expert) {
  ThreadPool pool(2);
  const auto [tier, type] = GetParam();
  Layer layer(pool, tier, type);
  layer.weights.shared_gate = layer.weights.shared_up = layer.weights.shared_down = layer.weights.shared_router = nullptr;
  std::vector<float> x = random_floats(3 * kHidden, 23), out(x.size()), routed(x.size());
  ops::MoeTaps taps;
  taps.experts = routed.data();
  cpu::moe_experts(pool, tier, {x.data(), 3, kHidden}, layer.weights, {out.data(), 3, kHidden}, &taps);
  EXPECT_EQ(out, routed);
}

INSTANTIATE_TEST_SUITE_P(every_tier_and_type, Moe, testing::ValuesIn(cases()), case_name);

TEST(RouteTopK, breaks_ties_by_the_lower_index_and_renormalises) {
  ThreadPool pool(1);
  const std::vector<float> logits{1.0f, 3.0f, 3.0f, 2.0f, 3.0f};
  std::vector<std::int32_t> ids(3);
  std::vector<float> weights(3);
  cpu::route_top_k(pool, logits.data(), 1, 5, 3, ids.data(), weights.data());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 2, 4}));
  for (float w : weights) EXPECT_FLOAT_EQ(w, 1.0f / 3.0f);
}

}  // namespace
}  // namespace heirloom::test
