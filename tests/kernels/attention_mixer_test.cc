// Softmax attention on every tier of this machine and every cache type: against the scalar specification, and bit for bit
// the same however a prompt is cut into calls, whatever shares the call, with any number of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "kernels/op_cases.h"
#include "ops/reference.h"

namespace heirloom::test {
namespace {

using cpu::CpuBackend;
using ops::Matrix;

struct Heads {
  int q, kv, dim, rotary;
};

constexpr int kLayers = 2;  // the op works on layer 1

struct AttentionCase {
  AttentionCase(const Heads& h, int tokens, std::uint32_t seed) : heads(h) {
    q_norm = random_floats(h.dim, seed, 2);
    k_norm = random_floats(h.dim, seed + 1, 2);
    q_gate = random_floats(std::int64_t{tokens} * h.q * 2 * h.dim, seed + 2);
    k = random_floats(std::int64_t{tokens} * h.kv * h.dim, seed + 3);
    v = random_floats(std::int64_t{tokens} * h.kv * h.dim, seed + 4);
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < h.rotary / 2; ++i) {
        const double angle = t * std::pow(1e4, -2.0 * i / h.rotary);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  ops::AttentionWeights weights() const {
    return {q_norm.data(), k_norm.data(), heads.q, heads.kv, heads.dim, heads.rotary, 1e-6f};
  }
  Heads heads;
  std::vector<float> q_norm, k_norm, q_gate, k, v, cos, sin;
};

/// KV pages of one sequence, filled with a pattern that no valid key has.
struct Cache {
  Cache(const Heads& h, DType type, int tokens) {
    shape.num_attention_layers = kLayers;
    shape.num_kv_heads = h.kv;
    shape.head_dim = h.dim;
    shape.kv_type = type;
    for (int i = 0; i * ops::StateShape::kPageTokens < tokens; ++i) {
      memory.emplace_back(shape.page_bytes(), std::byte{0xff});  // NaN in every type: reading it would show
      pages.push_back(memory.back().data());
    }
  }
  Cache(const Cache&) = delete;
  ops::StateShape shape;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> pages;
};

struct Part {
  Cache* cache;
  int first, rows, past;  // rows of the case; past tokens in the cache
};

/// One call over all parts, whose rows follow each other in the case from parts[0].first on.
template <typename Call>
std::vector<float> call(AttentionCase& c, const std::vector<Part>& parts, const Call& op) {
  ops::StepPlan plan;
  plan.shape = parts[0].cache->shape;
  for (const Part& part : parts) {
    plan.sequences.push_back({.first_row = plan.num_rows, .num_rows = part.rows, .past_tokens = part.past, .conv = nullptr,
                              .recurrent = nullptr, .captures = {}, .pages = part.cache->pages});
    plan.num_rows += part.rows;
  }
  const Heads& h = c.heads;
  const int first = parts[0].first;
  std::vector<float> out(static_cast<std::size_t>(plan.num_rows * h.q * h.dim));
  const auto rows = [&](std::vector<float>& m, int cols) { return Matrix{m.data() + std::ptrdiff_t{first} * cols, plan.num_rows, cols}; };
  op(plan, rows(c.q_gate, 2 * h.q * h.dim), rows(c.k, h.kv * h.dim), rows(c.v, h.kv * h.dim),
     c.cos.data() + std::ptrdiff_t{first} * h.rotary / 2, c.sin.data() + std::ptrdiff_t{first} * h.rotary / 2,
     Matrix{out.data(), plan.num_rows, h.q * h.dim});
  return out;
}

std::vector<float> run(ops::Backend& backend, AttentionCase& c, const std::vector<Part>& parts, const ops::AttentionTaps* taps = nullptr) {
  return call(c, parts, [&](const ops::StepPlan& plan, auto... args) {
    backend.begin_step(plan, 0);
    backend.attention_mixer(1, c.weights(), args..., taps);
    backend.end_step();
  });
}

std::vector<float> run_reference(AttentionCase& c, const std::vector<Part>& parts, const ops::AttentionTaps* taps = nullptr) {
  return call(c, parts, [&](const ops::StepPlan& plan, auto... args) {
    ops::reference::attention_mixer(plan, 1, c.weights(), args..., taps);
  });
}

class attention_mixer : public testing::TestWithParam<CpuTier> {
 protected:
  cpu::CpuBackendOptions options(int threads) const { return {.threads = threads, .tier = GetParam(), .profiler = nullptr}; }
};

TEST_P(attention_mixer, matches_the_specification_for_every_cache_type) {
  CpuBackend cpu(options(2));
  for (const Heads& h : {Heads{3, 1, 64, 16}, Heads{4, 2, 32, 8}, Heads{2, 1, 256, 64}, Heads{6, 1, 40, 20}, Heads{5, 5, 72, 18}}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const int tokens = 330;
      AttentionCase c(h, tokens, 100);
      Cache expected_cache(h, type, tokens), cache(h, type, tokens);
      int first = 0;
      for (const int rows : {1, 2, 63, 65, 130, 1, 68}) {  // past a block of 256 keys
        const std::vector<float> expected = run_reference(c, {{&expected_cache, first, rows, first}});
        const std::vector<float> out = run(cpu, c, {{&cache, first, rows, first}});
        const std::string what = std::string(dtype_name(type)) + ", " + std::to_string(h.dim) + " dims, " +
                                 std::to_string(rows) + " rows after " + std::to_string(first);
        // Weights of the norms around 2 make scores of up to 50: sharp and flat rows both occur. A 16-bit cache may round
        // a key the other way, half an ulp of the type.
        const double tolerance = type == DType::f32 ? 1e-5 : type == DType::f16 ? 2e-3 : 1e-2;
        expect_close(out, expected, tolerance, what);
        first += rows;
      }
      ASSERT_EQ(first, tokens);
    }
  }
}

TEST_P(attention_mixer, taps_match_the_specification) {
  CpuBackend cpu(options(2));
  const Heads h{4, 2, 64, 16};
  const int tokens = 9;
  AttentionCase c(h, tokens, 150);
  struct Taps {
    std::vector<float> qn, kn, qr, kr, gate;
    ops::AttentionTaps view() { return {qn.data(), kn.data(), qr.data(), kr.data(), gate.data()}; }
  } expected, actual;
  expected.qn.resize(static_cast<std::size_t>(tokens * h.q * h.dim));
  expected.kn.resize(static_cast<std::size_t>(tokens * h.kv * h.dim));
  expected.qr = expected.gate = expected.qn;
  expected.kr = expected.kn;
  actual = expected;
  Cache a(h, DType::f32, tokens), b(h, DType::f32, tokens), plain(h, DType::f32, tokens);
  const ops::AttentionTaps expected_view = expected.view(), actual_view = actual.view();
  run_reference(c, {{&a, 0, tokens, 0}}, &expected_view);
  const std::vector<float> out = run(cpu, c, {{&b, 0, tokens, 0}}, &actual_view);
  expect_close(actual.qn, expected.qn, 1e-6, "q_norm");
  expect_close(actual.kn, expected.kn, 1e-6, "k_norm");
  expect_close(actual.qr, expected.qr, 1e-6, "q_rope");
  expect_close(actual.kr, expected.kr, 1e-6, "k_rope");
  EXPECT_EQ(actual.gate, expected.gate);
  EXPECT_EQ(out, run(cpu, c, {{&plain, 0, tokens, 0}})) << "taps change the result";
}

TEST_P(attention_mixer, any_cut_and_any_thread_count_gives_the_same_bits) {
  for (const Heads& h : {Heads{8, 2, 64, 16}, Heads{2, 1, 128, 32}, Heads{3, 3, 32, 8}}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      if (type != DType::f32 && h.dim != 64) continue;
      const int tokens = 540;  // into a third block of keys
      AttentionCase c(h, tokens, 200);
      CpuBackend one(options(1));
      Cache whole_cache(h, type, tokens);
      const std::vector<float> whole = run(one, c, {{&whole_cache, 0, tokens, 0}});
      for (const int threads : {1, 2, 3, 7}) {
        CpuBackend cpu(options(threads));
        for (const std::vector<int>& cut : {std::vector<int>{540}, std::vector<int>{255, 1, 1, 283}, std::vector<int>{3, 8, 65, 400, 64},
                                            std::vector<int>{530, 1, 1, 1, 7}}) {
          Cache cache(h, type, tokens);
          std::vector<float> out;
          int first = 0;
          for (const int rows : cut) {
            const std::vector<float> piece = run(cpu, c, {{&cache, first, rows, first}});
            out.insert(out.end(), piece.begin(), piece.end());
            first += rows;
          }
          ASSERT_EQ(first, tokens);
          EXPECT_EQ(out, whole) << threads << " threads, " << cut.size() << " pieces, " << dtype_name(type);
          EXPECT_EQ(cache.memory, whole_cache.memory);
        }
      }
    }
  }
}

TEST_P(attention_mixer, sequences_that_share_a_call_do_not_see_each_other) {
  const Heads h{4, 2, 64, 16};
  const std::vector<int> past{300, 0, 17, 255, 0}, lengths{1, 40, 1, 3, 1};
  const int longest = 340;
  AttentionCase history(h, longest, 300), c(h, 46, 400);
  CpuBackend cpu(options(3));
  std::vector<std::unique_ptr<Cache>> caches, alone_caches;
  std::vector<Part> parts;
  std::vector<float> expected;
  int first = 0;
  for (std::size_t i = 0; i < past.size(); ++i) {
    for (auto* set : {&caches, &alone_caches}) {
      set->push_back(std::make_unique<Cache>(h, DType::f32, longest));
      if (past[i] > 0) run(cpu, history, {{set->back().get(), 0, past[i], 0}});
    }
    parts.push_back({caches.back().get(), first, lengths[i], past[i]});
    const std::vector<float> alone = run(cpu, c, {{alone_caches.back().get(), first, lengths[i], past[i]}});
    expected.insert(expected.end(), alone.begin(), alone.end());
    first += lengths[i];
  }
  EXPECT_EQ(run(cpu, c, parts), expected);
  for (std::size_t i = 0; i < caches.size(); ++i) EXPECT_EQ(caches[i]->memory, alone_caches[i]->memory);
}

INSTANTIATE_TEST_SUITE_P(tiers, attention_mixer, testing::ValuesIn(supported_tiers()), tier_name);

}  // namespace
}  // namespace heirloom::test
