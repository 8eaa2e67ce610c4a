#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace heirloom::engine {
namespace {

std::vector<std::int32_t> draw_many(const SamplingParams& params, const std::vector<float>& logits, int count) {
  std::vector<std::int32_t> drawn;
  for (int i = 0; i < count; ++i) {
    SamplingParams one = params;
    one.seed = static_cast<std::uint64_t>(i);
    drawn.push_back(Sampler(one, {}, static_cast<int>(logits.size())).sample(logits, {}));
  }
  return drawn;
}

double share_of(const std::vector<std::int32_t>& drawn, std::int32_t id) {
  return static_cast<double>(std::ranges::count(drawn, id)) / static_cast<double>(drawn.size());
}

TEST(sampler, greedy_takes_the_lowest_id_of_equals) {
  Sampler sampler({}, {}, 5);
  EXPECT_TRUE(sampler.plain_greedy());
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2, 3, 3}, {}), 1);
}

TEST(sampler, temperature_scales_the_distribution) {
  // p = 1/4, 3/4 at temperature 1; 1/10, 9/10 at temperature 0.5.
  const std::vector<float> logits = {0.0f, std::log(3.0f)};
  SamplingParams params;
  params.temperature = 1.0f;
  EXPECT_NEAR(share_of(draw_many(params, logits, 20000), 0), 0.25, 0.01);
  params.temperature = 0.5f;
  EXPECT_NEAR(share_of(draw_many(params, logits, 20000), 0), 0.10, 0.01);
}

TEST(sampler, top_k_keeps_the_k_best) {
  SamplingParams params;
  params.temperature = 2.0f;
  params.top_k = 2;
  const auto drawn = draw_many(params, {0.0f, 2.0f, 1.0f, 1.9f}, 2000);
  EXPECT_EQ(share_of(drawn, 0) + share_of(drawn, 2), 0.0);
  EXPECT_GT(share_of(drawn, 3), 0.3);
}

TEST(sampler, top_p_keeps_the_smallest_set_that_reaches_p) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const std::vector<float> logits = {std::log(0.05f), std::log(0.5f), std::log(0.15f), std::log(0.3f)};
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_p = 0.7f;
  const auto drawn = draw_many(params, logits, 8000);
  EXPECT_EQ(share_of(drawn, 0) + share_of(drawn, 2), 0.0);
  EXPECT_NEAR(share_of(drawn, 1), 0.625, 0.02);
  params.top_p = 0.4f;
  EXPECT_EQ(share_of(draw_many(params, logits, 500), 1), 1.0);
  params.top_p = 0.0f;
  EXPECT_EQ(share_of(draw_many(params, logits, 500), 1), 1.0);
}

TEST(sampler, top_p_of_a_flat_distribution_over_many_tokens) {
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_p = 0.5f;
  const std::vector<float> logits(10000, 1.0f);  // the lowest ids come first among equals
  const auto drawn = draw_many(params, logits, 400);
  EXPECT_LT(*std::ranges::max_element(drawn), 5001);
  EXPECT_GT(*std::ranges::max_element(drawn), 4800);
}

TEST(sampler, min_p_drops_what_is_unlikely_next_to_the_best) {
  const std::vector<float> logits = {std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  SamplingParams params;
  params.temperature = 1.0f;
  params.min_p = 0.4f;  // threshold 0.24
  const auto drawn = draw_many(params, logits, 4000);
  EXPECT_EQ(share_of(drawn, 2), 0.0);
  EXPECT_NEAR(share_of(drawn, 1), 1.0 / 3, 0.03);
}

TEST(sampler, penalties_follow_their_definitions) {
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  Sampler repetition(params, std::vector<std::int32_t>{0, 1}, 3);
  EXPECT_EQ(repetition.sample(std::vector<float>{4.0f, -1.0f, 2.5f}, {}), 2);    // 2, -2, 2.5
  EXPECT_EQ(repetition.sample(std::vector<float>{-8.0f, -1.0f, -1.5f}, {}), 2);  // -16, -2, -1.5
  params = {};
  params.presence_penalty = 1.0f;
  Sampler presence(params, std::vector<std::int32_t>{0}, 2);
  EXPECT_EQ(presence.sample(std::vector<float>{2.0f, 1.5f}, {}), 0);  // the prompt does not count
  presence.accept(0);
  EXPECT_EQ(presence.sample(std::vector<float>{2.0f, 1.5f}, {}), 1);
  presence.accept(0);
  EXPECT_EQ(presence.sample(std::vector<float>{2.6f, 1.5f}, {}), 0);  // once, not twice
  params = {};
  params.frequency_penalty = 0.5f;
  Sampler frequency(params, {}, 2);
  frequency.accept(0);
  EXPECT_EQ(frequency.sample(std::vector<float>{2.6f, 1.5f}, {}), 0);
  frequency.accept(0);
  frequency.accept(0);
  EXPECT_EQ(frequency.sample(std::vector<float>{2.6f, 1.5f}, {}), 1);
}

TEST(sampler, logit_bias_and_mask_are_obeyed) {
  SamplingParams params;
  params.logit_bias = {{0, -100.0f}, {2, 100.0f}};
  Sampler sampler(params, {}, 3);
  EXPECT_FALSE(sampler.plain_greedy());
  EXPECT_EQ(sampler.sample(std::vector<float>{50.0f, 1.0f, 0.0f}, {}), 2);
  const std::vector<std::uint32_t> only_one = {0b010};
  EXPECT_EQ(sampler.sample(std::vector<float>{50.0f, 1.0f, 0.0f}, only_one), 1);
  EXPECT_THROW(sampler.sample(std::vector<float>{50.0f, 1.0f, 0.0f}, std::vector<std::uint32_t>{0}), Error);
}

TEST(sampler, refuses_parameters_out_of_range) {
  const auto refused = [](auto change) {
    SamplingParams params;
    change(params);
    EXPECT_THROW(check_sampling(params, 10), Error);
  };
  refused([](SamplingParams& p) { p.temperature = -1; });
  refused([](SamplingParams& p) { p.temperature = std::nanf(""); });
  refused([](SamplingParams& p) { p.top_p = 1.5f; });
  refused([](SamplingParams& p) { p.min_p = -0.1f; });
  refused([](SamplingParams& p) { p.top_k = -1; });
  refused([](SamplingParams& p) { p.repetition_penalty = 0; });
  refused([](SamplingParams& p) { p.logit_bias = {{10, 1.0f}}; });
  refused([](SamplingParams& p) { p.logit_bias = {{-1, 1.0f}}; });
  check_sampling({}, 10);
}

TEST(sampler, a_model_without_finite_logits_is_an_error) {
  Sampler sampler({}, {}, 2);
  EXPECT_THROW(sampler.sample(std::vector<float>{std::nanf(""), std::nanf("")}, {}), Error);
}

TEST(sampler, same_seed_gives_the_same_choices_and_other_seeds_others) {
  const std::vector<float> logits(1000, 0.0f);
  SamplingParams params;
  params.temperature = 1.0f;
  const auto choices = [&](std::uint64_t seed) {
    params.seed = seed;
    Sampler sampler(params, {}, 1000);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 20; ++i) {
      ids.push_back(sampler.sample(logits, {}));
      sampler.accept(ids.back());
    }
    return ids;
  };
  EXPECT_EQ(choices(7), choices(7));
  EXPECT_NE(choices(7), choices(8));
}

TEST(sampler, uniform_numbers_are_uniform) {
  std::vector<int> buckets(16);
  for (std::uint64_t i = 0; i < 64000; ++i) ++buckets[static_cast<std::size_t>(uniform_at(3, i) * 16)];
  for (const int count : buckets) EXPECT_NEAR(count, 4000, 300);
}

TEST(sampler, log_probabilities_equal_a_full_sort) {
  std::mt19937 random(1);
  std::vector<float> logits(5000);
  for (auto& value : logits) value = static_cast<float>(random() % 997) / 50.0f;  // with ties
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value));
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
  const auto top = top_logprobs(logits, 20);
  ASSERT_EQ(top.size(), 20u);
  double total = 0;
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(top[i].id, order[i]);
    EXPECT_NEAR(top[i].logprob, static_cast<double>(logits[static_cast<std::size_t>(order[i])]) - std::log(sum), 1e-5);
    EXPECT_EQ(logprob_of(logits, top[i].id).logprob, top[i].logprob);
    total += std::exp(static_cast<double>(top[i].logprob));
  }
  EXPECT_LE(total, 1.0);
  EXPECT_TRUE(top_logprobs(logits, 0).empty());
}

}  // namespace
}  // namespace heirloom::engine
