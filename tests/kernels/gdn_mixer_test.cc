// Gated DeltaNet on every tier of this machine: against the scalar specification, and bit for bit the same however a
// prompt is cut into calls, whatever shares the call, with any number of threads.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "kernels/op_cases.h"
#include "ops/reference.h"

namespace heirloom::test {
namespace {

using cpu::CpuBackend;
using ops::Matrix;

struct Shape {
  int nk, nv, dk, dv;
  bool tiled;
};

/// Weights and a sequence of inputs for `tokens` tokens.
struct GdnCase {
  GdnCase(const Shape& s, int tokens, std::uint32_t seed) : shape(s), channels(2 * s.nk * s.dk + s.nv * s.dv) {
    conv = random_floats(channels * 4, seed, 0.5f);
    dt_bias = random_floats(s.nv, seed + 1, 2);
    norm = random_floats(s.dv, seed + 2);
    neg_exp_a = random_floats(s.nv, seed + 3);
    for (float& value : neg_exp_a) value = -std::exp(2 * value);  // from 0.02 to 50: long and one-token memories
    qkv = random_floats(tokens * channels, seed + 4);
    z = random_floats(tokens * s.nv * s.dv, seed + 5, 2);
    a = random_floats(tokens * s.nv, seed + 6, 3);
    b = random_floats(tokens * s.nv, seed + 7, 2);
  }
  ops::GdnWeights weights() const {
    return {conv.data(), dt_bias.data(), neg_exp_a.data(), norm.data(), shape.nk, shape.nv, shape.dk, shape.dv, shape.tiled, 1e-6f};
  }
  Shape shape;
  int channels;
  std::vector<float> conv, dt_bias, norm, neg_exp_a, qkv, z, a, b;
};

constexpr int kLayers = 2;  // the op works on layer 1; layer 0 must stay as it is

struct State {
  State(const GdnCase& c, std::uint32_t seed)
      : conv(random_floats(kLayers * 4 * c.channels, seed)),
        recurrent(random_floats(std::int64_t{kLayers} * c.shape.nv * c.shape.dk * c.shape.dv, seed + 1)) {}
  std::vector<float> conv, recurrent;
  bool operator==(const State&) const = default;
};

ops::StepPlan plan_for(const GdnCase& c) {
  ops::StepPlan plan;
  plan.shape.num_gdn_layers = kLayers;
  plan.shape.conv_channels = c.channels;
  plan.shape.num_v_heads = c.shape.nv;
  plan.shape.head_k_dim = c.shape.dk;
  plan.shape.head_v_dim = c.shape.dv;
  return plan;
}

void append(ops::StepPlan& plan, State& state, int rows, std::span<const ops::StateCapture> captures = {}) {
  plan.sequences.push_back({.first_row = plan.num_rows, .num_rows = rows, .past_tokens = 0, .conv = state.conv.data(),
                            .recurrent = state.recurrent.data(), .captures = captures, .pages = {}});
  plan.num_rows += rows;
}

/// Tokens [first, first + rows) of the case in one call; returns the output rows.
std::vector<float> run(ops::Backend& backend, GdnCase& c, State& state, int first, int rows,
                       std::span<const ops::StateCapture> captures = {}) {
  ops::StepPlan plan = plan_for(c);
  append(plan, state, rows, captures);
  const int width = c.shape.nv * c.shape.dv;
  std::vector<float> out(static_cast<std::size_t>(rows * width));
  const auto part = [&](std::vector<float>& v, int cols) { return Matrix{v.data() + first * cols, rows, cols}; };
  backend.begin_step(plan, 0);
  backend.gdn_mixer(1, c.weights(), part(c.qkv, c.channels), part(c.z, width), part(c.a, c.shape.nv), part(c.b, c.shape.nv),
                    {out.data(), rows, width}, nullptr);
  backend.end_step();
  return out;
}

class gdn_mixer : public testing::TestWithParam<CpuTier> {
 protected:
  cpu::CpuBackendOptions options(int threads) const { return {.threads = threads, .tier = GetParam(), .profiler = nullptr}; }
};

TEST_P(gdn_mixer, matches_the_specification_with_all_taps_and_states) {
  CpuBackend cpu(options(2));
  for (const Shape& s : {Shape{1, 1, 16, 16, false}, Shape{3, 6, 32, 32, false}, Shape{2, 6, 32, 48, true},
                         Shape{1, 2, 128, 128, false}, Shape{2, 2, 20, 37, false}, Shape{2, 4, 64, 80, true}}) {
    for (const int tokens : {1, 2, 3, 5, 63, 64, 65, 130}) {
      GdnCase c(s, tokens, 100);
      const int width = s.nv * s.dv;
      State expected_state(c, 7), state = expected_state;
      const auto make = [&](int cols) { return std::vector<float>(static_cast<std::size_t>(tokens * cols)); };
      struct Outputs {
        std::vector<float> conv, q, k, g, beta, core, out;
      } expected{make(c.channels), make(s.nk * s.dk), make(s.nk * s.dk), make(s.nv), make(s.nv), make(width), make(width)};
      Outputs actual = expected;
      const auto all = [&](Outputs& o, State& st, auto&& call) {
        ops::StepPlan plan = plan_for(c);
        append(plan, st, tokens);
        const ops::GdnTaps taps{o.conv.data(), o.q.data(), o.k.data(), o.g.data(), o.beta.data(), o.core.data()};
        call(plan, matrix(c.qkv, tokens), matrix(c.z, tokens), matrix(c.a, tokens), matrix(c.b, tokens), matrix(o.out, tokens), &taps);
      };
      all(expected, expected_state, [&](auto& plan, auto... args) { ops::reference::gdn_mixer(plan, 1, c.weights(), args...); });
      all(actual, state, [&](auto& plan, auto... args) {
        cpu.begin_step(plan, 0);
        cpu.gdn_mixer(1, c.weights(), args...);
        cpu.end_step();
      });
      const std::string what = std::to_string(s.dk) + "x" + std::to_string(s.dv) + ", " + std::to_string(tokens) + " tokens: ";
      expect_close(actual.conv, expected.conv, 1e-6, what + "conv_out");
      expect_close(actual.q, expected.q, 1e-6, what + "q_l2norm");
      expect_close(actual.k, expected.k, 1e-6, what + "k_l2norm");
      expect_close(actual.g, expected.g, 1e-6, what + "g");
      expect_close(actual.beta, expected.beta, 1e-6, what + "beta");
      // A float recurrence against one whose sums are in double: a few dozen ulps of the largest value.
      expect_close(actual.core, expected.core, 5e-6, what + "core_out");
      expect_close(state.recurrent, expected_state.recurrent, 5e-6, what + "state");
      EXPECT_EQ(state.conv, expected_state.conv) << what;
      // The norm divides each head by its own size, so that its error is that of a relative one.
      expect_close(actual.out, expected.out, 2e-4, what + "out");
    }
  }
}

TEST_P(gdn_mixer, any_cut_and_any_thread_count_gives_the_same_bits) {
  for (const Shape& s : {Shape{2, 4, 64, 64, false}, Shape{1, 2, 128, 128, true}}) {
    const int tokens = 150;
    GdnCase c(s, tokens, 200);
    const State start(c, 9);
    State whole_state = start;
    CpuBackend one(options(1));
    const std::vector<float> whole = run(one, c, whole_state, 0, tokens);
    for (const int threads : {1, 2, 3, 7}) {
      CpuBackend cpu(options(threads));
      for (const std::vector<int>& cut : {std::vector<int>{150}, std::vector<int>(150, 1), std::vector<int>{1, 149},
                                          std::vector<int>{64, 64, 22}, std::vector<int>{3, 8, 65, 2, 72}}) {
        State state = start;
        std::vector<float> out;
        int first = 0;
        for (const int rows : cut) {
          const std::vector<float> piece = run(cpu, c, state, first, rows);
          out.insert(out.end(), piece.begin(), piece.end());
          first += rows;
        }
        ASSERT_EQ(first, tokens);
        EXPECT_EQ(out, whole) << threads << " threads, " << cut.size() << " pieces";
        EXPECT_TRUE(state == whole_state) << threads << " threads, " << cut.size() << " pieces";
      }
    }
  }
}

TEST_P(gdn_mixer, sequences_that_share_a_call_do_not_see_each_other) {
  const Shape s{2, 4, 32, 64, false};
  const std::vector<int> lengths{1, 70, 1, 3, 64, 130, 2, 1};
  int total = 0;
  for (const int n : lengths) total += n;
  GdnCase c(s, total, 300);
  CpuBackend cpu(options(3));
  std::vector<State> states, expected_states;
  for (std::size_t i = 0; i < lengths.size(); ++i) states.emplace_back(c, static_cast<std::uint32_t>(20 + 2 * i));
  expected_states = states;

  std::vector<float> expected;
  int first = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::vector<float> alone = run(cpu, c, expected_states[i], first, lengths[i]);
    expected.insert(expected.end(), alone.begin(), alone.end());
    first += lengths[i];
  }
  ops::StepPlan plan = plan_for(c);
  for (std::size_t i = 0; i < lengths.size(); ++i) append(plan, states[i], lengths[i]);
  std::vector<float> out(expected.size());
  cpu.begin_step(plan, 0);
  cpu.gdn_mixer(1, c.weights(), matrix(c.qkv, total), matrix(c.z, total), matrix(c.a, total), matrix(c.b, total), matrix(out, total), nullptr);
  cpu.end_step();
  EXPECT_EQ(out, expected);
  for (std::size_t i = 0; i < lengths.size(); ++i) EXPECT_TRUE(states[i] == expected_states[i]) << "sequence " << i;
}

TEST_P(gdn_mixer, captures_are_the_states_that_shorter_calls_end_with) {
  const Shape s{2, 2, 64, 64, false};
  const int tokens = 200;
  GdnCase c(s, tokens, 400);
  CpuBackend cpu(options(2));
  ASSERT_TRUE(cpu.captures_states());
  const State start(c, 30);
  const State blank(c, 31);  // its layer 0 must not be touched by a capture of layer 1
  const std::vector<int> at{1, 3, 64, 65, 128, 199};
  std::vector<State> captured(at.size(), blank);
  std::vector<ops::StateCapture> captures;
  for (std::size_t i = 0; i < at.size(); ++i) captures.push_back({at[i], captured[i].conv.data(), captured[i].recurrent.data()});

  State state = start, plain_state = start;
  const std::vector<float> out = run(cpu, c, state, 0, tokens, captures);
  EXPECT_EQ(out, run(cpu, c, plain_state, 0, tokens));
  EXPECT_TRUE(state == plain_state);
  for (std::size_t i = 0; i < at.size(); ++i) {
    State expected = start;
    run(cpu, c, expected, 0, at[i]);
    const auto layer1_equal = [](const std::vector<float>& x, const std::vector<float>& y) {
      return std::equal(x.begin() + static_cast<std::ptrdiff_t>(x.size() / kLayers), x.end(),
                        y.begin() + static_cast<std::ptrdiff_t>(y.size() / kLayers));
    };
    EXPECT_TRUE(layer1_equal(captured[i].conv, expected.conv)) << "after " << at[i];
    EXPECT_TRUE(layer1_equal(captured[i].recurrent, expected.recurrent)) << "after " << at[i];
    EXPECT_TRUE(std::equal(blank.conv.begin(), blank.conv.begin() + static_cast<std::ptrdiff_t>(blank.conv.size() / kLayers),
                           captured[i].conv.begin()));
  }
}

TEST_P(gdn_mixer, output_may_overwrite_z) {
  const Shape s{1, 2, 32, 32, false};
  GdnCase c(s, 70, 500);
  CpuBackend cpu(options(2));
  State state(c, 40), other = state;
  const std::vector<float> expected = run(cpu, c, state, 0, 70);
  ops::StepPlan plan = plan_for(c);
  append(plan, other, 70);
  cpu.begin_step(plan, 0);
  cpu.gdn_mixer(1, c.weights(), matrix(c.qkv, 70), matrix(c.z, 70), matrix(c.a, 70), matrix(c.b, 70), matrix(c.z, 70), nullptr);
  cpu.end_step();
  EXPECT_EQ(c.z, expected);
}

INSTANTIATE_TEST_SUITE_P(tiers, gdn_mixer, testing::ValuesIn(supported_tiers()), tier_name);

}  // namespace
}  // namespace heirloom::test
