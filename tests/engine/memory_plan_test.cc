// What the memory plan makes of options and bytes; the fake model's states are small enough to count by hand.
#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/fake_model.h"

namespace heirloom::test {
namespace {

// Pages of 2 layers x (K, V) x 64 x 2 f32 = 2048 bytes; recurrent state 4 and conv state 4 f32 = 32 bytes.
constexpr std::uint64_t kPage = 2048, kState = 32;
constexpr std::uint64_t kMiB = 1 << 20;

class memory_plan : public testing::Test {
 protected:
  engine::MemoryPlan plan(std::uint64_t available) { return engine::make_memory_plan(model_, options_, available); }
  std::string error(std::uint64_t available, ErrorKind kind) {
    try {
      plan(available);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      return error.what();
    }
    return "no error";
  }
  FakeBackend backend_;
  FakeModel model_{backend_};  // a context of 2^20 tokens: 16,384 pages, 32 MiB
  EngineOptions options_;
};

TEST_F(memory_plan, gives_the_models_context_and_the_cache_that_was_asked_for) {
  options_.cache_ram_bytes = 100 * kMiB;
  const engine::MemoryPlan made = plan(1000 * kMiB);
  EXPECT_EQ(made.context_tokens, 1 << 20);
  EXPECT_EQ(made.bytes_per_request, 16384 * kPage + kState);
  EXPECT_EQ(made.cache_bytes, 100 * kMiB);
  EXPECT_EQ(made.kv_type, DType::f32);
}

TEST_F(memory_plan, the_cache_gets_a_quarter_at_most_and_the_context_what_fits) {
  const engine::MemoryPlan made = plan(20 * kMiB);  // 18 usable: 4.5 for the cache, 13.5 for a request
  EXPECT_EQ(made.cache_bytes, 18 * kMiB / 4);
  EXPECT_EQ(made.context_tokens, 1 << 18);          // 8 MiB; twice that does not fit
}

TEST_F(memory_plan, long_contexts_of_many_requests_take_half_precision) {
  options_.parallel = 100;  // 3.2 GiB in f32: above the 2 GiB up to which f32 is taken
  EXPECT_EQ(plan(64000 * kMiB).kv_type, DType::f16);
  options_.kv_type = "bf16";
  EXPECT_EQ(plan(64000 * kMiB).kv_type, DType::bf16);
}

TEST_F(memory_plan, what_cannot_fit_is_refused_with_both_numbers) {
  options_.context_tokens = 1 << 20;
  options_.parallel = 2;
  options_.cache_ram_bytes = 0;
  EXPECT_THAT(error(40 * kMiB, ErrorKind::does_not_fit), testing::AllOf(testing::HasSubstr("need 64 MiB"), testing::HasSubstr("36 MiB are there")));
  options_.context_tokens = 0;
  EXPECT_THAT(error(1000, ErrorKind::does_not_fit), testing::HasSubstr("lower --parallel"));
}

TEST_F(memory_plan, bad_options_are_named) {
  options_.parallel = 0;
  EXPECT_THAT(error(kMiB, ErrorKind::usage), testing::HasSubstr("--parallel 0"));
  options_.parallel = 1;
  options_.context_tokens = (1 << 20) + 1;
  EXPECT_THAT(error(kMiB, ErrorKind::usage), testing::HasSubstr("--ctx 1048577"));
  options_.context_tokens = 0;
  options_.kv_type = "q1";
  EXPECT_THAT(error(kMiB, ErrorKind::usage), testing::HasSubstr("--kv-type q1"));
}

}  // namespace
}  // namespace heirloom::test
