// What a step may carry beside running streams: long prompts within twice the step's time, short ones at once but seldom.
#include "engine/step_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace heirloom::engine {
namespace {

constexpr std::int64_t kChunk = 512;
// A small model: 8 streams take 0.5 ms a step, a prompt token 0.03 ms among many and 0.08 ms among few.
constexpr double kDecodeMs = 0.5;

double step_ms(std::int64_t prefill) {
  return kDecodeMs + static_cast<double>(prefill) * (prefill >= 32 ? 0.03 : 0.08);
}

/// A budget that has seen one prompt alone and a thousand steps of eight streams.
StepBudget warm() {
  StepBudget budget(kChunk);
  budget.note(0, 64, 64 * 0.03);
  for (int i = 0; i < 1000; ++i) budget.note(8, 0, kDecodeMs);
  return budget;
}

TEST(step_budget, a_prompt_alone_takes_the_largest_chunk) {
  EXPECT_EQ(StepBudget(kChunk).prefill_tokens(0, 4000), kChunk);
}

TEST(step_budget, a_long_prompt_keeps_steps_below_twice_their_time) {
  StepBudget budget = warm();
  std::int64_t left = 4000;
  double in_bound = 0, all = 0;
  while (left > 0) {
    const std::int64_t tokens = std::min(left, budget.prefill_tokens(8, left <= kChunk ? left : 0));
    const double ms = step_ms(tokens);
    budget.note(8, tokens, ms);
    left -= tokens;
    all += 1;
    in_bound += ms <= 2 * kDecodeMs;
  }
  EXPECT_GE(in_bound / all, 0.98);  // all but the first two, which learn the price of small chunks, and its end, which may be a burst
  EXPECT_GT(all, 250);
}

TEST(step_budget, short_prompts_go_at_once_while_they_are_few) {
  StepBudget budget = warm();
  EXPECT_EQ(budget.prefill_tokens(8, 400), 400);  // 12 ms
  EXPECT_LE(budget.prefill_tokens(8, 700), 540);  // 16 ms of them
  // Also beside another number of streams than was measured last: no step passes before it.
  EXPECT_EQ(budget.prefill_tokens(5, 70), 70);
  budget.note(8, 400, step_ms(400));
  EXPECT_LE(budget.prefill_tokens(8, 400), 150);  // what was left
  // One prompt of 70 tokens after another, for 10 s: what steps take beyond the bound of long prompts is a sixteenth of the time.
  double time = 0, beyond = 0;
  for (std::int64_t left = 70; time < 10000;) {
    const std::int64_t tokens = std::min(left, budget.prefill_tokens(8, left));
    const double ms = step_ms(tokens);
    budget.note(8, tokens, ms);
    beyond += std::max(0.0, ms - 1.8 * kDecodeMs);
    time += ms;
    left = left > tokens ? left - tokens : 70;
  }
  EXPECT_GT(beyond, 0.02 * time);
  EXPECT_LT(beyond, 0.07 * time);
}

TEST(step_budget, bursts_need_a_measured_price) {
  StepBudget budget(kChunk);
  for (int i = 0; i < 10; ++i) budget.note(8, 0, kDecodeMs);
  EXPECT_LT(budget.prefill_tokens(8, 70), 8);
  // A large model, 30 ms a step, 3 ms a token: less than a burst.
  StepBudget large(kChunk);
  large.note(0, 64, 64 * 3.0);
  for (int i = 0; i < 100; ++i) large.note(8, 0, 30.0);
  EXPECT_LE(large.prefill_tokens(8, 70), 8);
  EXPECT_GE(large.prefill_tokens(8, 70), 7);
}

}  // namespace
}  // namespace heirloom::engine
