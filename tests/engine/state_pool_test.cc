// Memory for states that is made ready ahead of its use.
#include "engine/state_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/fake_model.h"

namespace heirloom::engine {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

/// States of about 0.5 MB, pages of 128 KiB.
ops::StateShape shape() {
  ops::StateShape shape;
  shape.num_gdn_layers = 6;
  shape.conv_kernel = 4;
  shape.conv_channels = 768;
  shape.num_v_heads = 4;
  shape.head_k_dim = shape.head_v_dim = 64;
  shape.num_attention_layers = 2;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  shape.kv_type = DType::f32;
  return shape;
}

TEST(state_pool, memory_is_made_ready_up_to_both_limits) {
  test::FakeBackend backend;
  StatePool pool(backend, shape());
  while (pool.make_ready(32 * kMiB, 1024 * kMiB)) {
    ASSERT_LE(pool.bytes_reserved(), 44 * kMiB);
  }
  const std::uint64_t ready = pool.bytes_reserved();
  EXPECT_GE(ready, 32 * kMiB);
  EXPECT_EQ(pool.bytes_in_use(), 0u);
  {
    // What is used from it is asked for again, and nothing else is reserved for it.
    std::vector<StateRef> states;
    while (pool.bytes_in_use() < 16 * kMiB) states.push_back(pool.new_state());
    EXPECT_EQ(pool.bytes_reserved(), ready);
    while (pool.make_ready(32 * kMiB, ready + 8 * kMiB)) {
    }
    EXPECT_GE(pool.bytes_reserved(), ready + 8 * kMiB);
    EXPECT_LT(pool.bytes_reserved(), ready + 16 * kMiB);
  }
  EXPECT_FALSE(pool.make_ready(32 * kMiB, 1024 * kMiB));
}

TEST(state_pool, nothing_is_made_ready_on_a_device) {
  test::FakeBackend backend;
  backend.host_memory = false;
  StatePool pool(backend, shape());
  EXPECT_FALSE(pool.make_ready(32 * kMiB, 1024 * kMiB));
  EXPECT_EQ(pool.bytes_reserved(), 0u);
}

}  // namespace
}  // namespace heirloom::engine
