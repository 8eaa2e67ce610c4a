// Gated DeltaNet, softmax attention and experts through the GPU kernels on the emulator, against the scalar specification.
#include <gtest/gtest.h>

#include "cuda/cuda_cases.h"
#include "cuda/cuda_sequences.h"

namespace heirloom::test {
namespace {

class emulator_mixers : public testing::TestWithParam<CudaCase> {};

void run_gdn(const CudaCase& c, int nk, int nv, int D, bool tiled, const std::vector<Part>& parts, bool taps_wanted,
             int recurrent_rows = 1, cuda::GemmType gemm = cuda::GemmType::f32) {
  cuda::CudaBackendOptions options;
  options.gdn_recurrent_rows = recurrent_rows;
  auto backend = open_emulated(c, options, gemm);
  const bool rounded = gemm == cuda::GemmType::bf16;  // operands have 11 bits of mantissa then
  ops::StateShape shape;
  shape.num_gdn_layers = 2;
  shape.conv_channels = (2 * nk + nv) * D;
  shape.num_v_heads = nv;
  shape.head_k_dim = shape.head_v_dim = D;
  Sequences s(*backend, shape, parts);
  const std::int64_t T = s.host.num_rows, C = shape.conv_channels;
  Both qkv(*backend, T, C, 1), z(*backend, T, nv * D, 2), a(*backend, T, nv, 3, 2.0f), b(*backend, T, nv, 4, 2.0f),
      out(*backend, T, nv * D, 5), conv(*backend, C, 4, 6), dt_bias(*backend, 1, nv, 7, 2.0f), neg_a(*backend, 1, nv, 8),
      norm(*backend, 1, D, 9);
  for (float& v : neg_a.values()) v = -std::exp(v);
  backend->upload(neg_a.device().data, neg_a.values().data(), neg_a.values().size() * 4);
  Both conv_tap(*backend, T, C, 10), q_tap(*backend, T, nk * D, 11), k_tap(*backend, T, nk * D, 12), g_tap(*backend, T, nv, 13),
      beta_tap(*backend, T, nv, 14), core_tap(*backend, T, nv * D, 15);
  const auto weights = [&](bool device) {
    const auto data = [&](Both& x) { return device ? x.device_data() : x.values().data(); };
    return ops::GdnWeights{data(conv), data(dt_bias), data(neg_a), data(norm), nk, nv, D, D, tiled, 1e-6f};
  };
  const ops::GdnTaps device_taps{conv_tap.device().data, q_tap.device().data, k_tap.device().data,
                                 g_tap.device().data, beta_tap.device().data, core_tap.device().data};
  const ops::GdnTaps host_taps{conv_tap.host().data, q_tap.host().data, k_tap.host().data,
                               g_tap.host().data, beta_tap.host().data, core_tap.host().data};
  EXPECT_FALSE(backend->begin_step(s.device, 0));
  backend->gdn_mixer(1, weights(true), qkv.device(), z.device(), a.device(), b.device(), out.device(),
                     taps_wanted ? &device_taps : nullptr);
  backend->end_step();
  ops::reference::gdn_mixer(s.host, 1, weights(false), qkv.host(), z.host(), a.host(), b.host(), out.host(), &host_taps);
  out.expect_equal("out", rounded ? 5e-3 : 1e-4);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    s.recurrent[i]->expect_equal("recurrent state " + std::to_string(i), rounded ? 2e-3 : 2e-5);
    s.conv[i]->expect_equal("conv state " + std::to_string(i), 1e-6);
  }
  if (!taps_wanted) return;
  conv_tap.expect_equal("conv_out");
  q_tap.expect_equal("q_l2norm");
  k_tap.expect_equal("k_l2norm");
  g_tap.expect_equal("g");
  beta_tap.expect_equal("beta");
  core_tap.expect_equal("core_out", rounded ? 5e-3 : 2e-5);
}

TEST_P(emulator_mixers, gdn_single_tokens_match_the_reference) {
  run_gdn(GetParam(), 2, 4, 32, false, {{1, 0}, {1, 65}, {1, 7}}, false);
  run_gdn(GetParam(), 1, 1, 64, false, {{1, 3}}, true);
  run_gdn(GetParam(), 2, 2, 128, false, {{1, 3}}, false);
}

TEST_P(emulator_mixers, gdn_chunks_match_the_reference) {
  run_gdn(GetParam(), 2, 6, 32, true, {{70, 61}, {1, 5}, {2, 0}}, true);
  run_gdn(GetParam(), 1, 2, 64, false, {{65, 0}}, false);
  run_gdn(GetParam(), 1, 1, 128, false, {{17, 127}}, false);
}

TEST(emulator_gdn, chunks_on_tensor_cores_are_near_the_reference) {
  run_gdn(cuda_cases().back(), 1, 2, 128, true, {{150, 61}, {1, 5}, {17, 0}}, false, 1, cuda::GemmType::bf16);
  run_gdn(cuda_cases().back(), 2, 4, 128, false, {{70, 0}, {19, 60}}, false, 1, cuda::GemmType::bf16);  // all in chunks
  run_gdn(cuda_cases().back(), 1, 2, 128, true, {{70, 0}}, true, 1, cuda::GemmType::bf16);
}

TEST(emulator_gdn, walks_through_several_tokens_in_the_recurrent_form) {
  run_gdn(cuda_cases().front(), 1, 2, 32, false, {{5, 2}, {1, 0}}, true, 8);
}

TEST(emulator_gdn, a_prompt_cut_at_a_chunk_gives_the_same_bits) {
  const int D = 32;
  std::vector<float> outs[2], states[2];
  for (const bool cut : {false, true}) {
    auto backend = open_emulated();
    ops::StateShape shape;
    shape.num_gdn_layers = 1;
    shape.conv_channels = 3 * D;
    shape.num_v_heads = 1;
    shape.head_k_dim = shape.head_v_dim = D;
    Both qkv(*backend, 130, 3 * D, 1), z(*backend, 130, D, 2), a(*backend, 130, 1, 3), b(*backend, 130, 1, 4), out(*backend, 130, D, 5),
        conv(*backend, 3 * D, 4, 6), dt(*backend, 1, 1, 7), neg(*backend, 1, 1, 8), norm(*backend, 1, D, 9);
    std::vector<float> minus{-0.5f};
    backend->upload(neg.device().data, minus.data(), 4);
    const ops::GdnWeights weights{conv.device_data(), dt.device_data(), neg.device_data(), norm.device_data(), 1, 1, D, D, false, 1e-6f};
    ops::Buffer state = backend->make_buffer(shape.recurrent_floats() * 4), conv_state = backend->make_buffer(shape.conv_floats() * 4);
    backend->zero(state.data(), state.bytes());
    backend->zero(conv_state.data(), conv_state.bytes());
    int past = 0;
    for (const int rows : cut ? std::vector<int>{64, 66} : std::vector<int>{130}) {
      ops::StepPlan plan{shape, {{0, rows, past, conv_state.f32(), state.f32(), {}, {}}}, rows};
      const auto part = [&](Both& x) { return ops::Matrix{x.device().data + past * x.device().cols, rows, x.device().cols}; };
      backend->begin_step(plan, 0);
      backend->gdn_mixer(0, weights, part(qkv), part(z), part(a), part(b), part(out), nullptr);
      backend->end_step();
      past += rows;
    }
    outs[cut] = out.downloaded();
    states[cut].resize(shape.recurrent_floats());
    backend->download(states[cut].data(), state.data(), state.bytes());
  }
  EXPECT_EQ(outs[0], outs[1]);
  EXPECT_EQ(states[0], states[1]);
}

// A captured state is what a prompt that ends there would leave, and capturing changes nothing else.
void expect_captures(const CudaCase& c, int D, cuda::GemmType gemm) {
  const int rows = 150, past = 3;
  ops::StateShape shape;
  shape.num_gdn_layers = 2;
  shape.conv_channels = 3 * D;
  shape.num_v_heads = 1;
  shape.head_k_dim = shape.head_v_dim = D;
  struct Result {
    std::vector<float> conv, recurrent, out;
  };
  std::vector<Result> captured;
  const auto run = [&](int n, const std::vector<std::int32_t>& capture_at) {
    auto backend = open_emulated(c, {}, gemm);
    EXPECT_TRUE(backend->captures_states());
    Both qkv(*backend, rows, 3 * D, 1), z(*backend, rows, D, 2), a(*backend, rows, 1, 3), b(*backend, rows, 1, 4), out(*backend, rows, D, 5),
        conv(*backend, 3 * D, 4, 6), dt(*backend, 1, 1, 7), neg(*backend, 1, 1, 8), norm(*backend, 1, D, 9),
        state(*backend, 1, static_cast<std::int64_t>(shape.recurrent_floats()), 10, 0.3f),
        conv_state(*backend, 1, static_cast<std::int64_t>(shape.conv_floats()), 11);
    const std::vector<float> minus{-0.5f};
    backend->upload(neg.device().data, minus.data(), 4);
    const ops::GdnWeights weights{conv.device_data(), dt.device_data(), neg.device_data(), norm.device_data(), 1, 1, D, D, false, 1e-6f};
    std::vector<ops::Buffer> places;
    std::vector<ops::StateCapture> captures;
    for (const std::int32_t at : capture_at) {
      places.push_back(backend->make_buffer(shape.conv_floats() * 4));
      places.push_back(backend->make_buffer(shape.recurrent_floats() * 4));
      captures.push_back({at, places[places.size() - 2].f32(), places.back().f32()});
    }
    ops::StepPlan plan;
    plan.shape = shape;
    plan.num_rows = n;
    plan.sequences.push_back({0, n, past, conv_state.device().data, state.device().data, captures, {}});
    const auto part = [&](Both& x) { return ops::Matrix{x.device().data, n, x.device().cols}; };
    backend->begin_step(plan, 0);
    for (int layer = 0; layer < 2; ++layer) {
      backend->gdn_mixer(layer, weights, part(qkv), part(z), part(a), part(b), part(out), nullptr);
    }
    backend->end_step();
    for (std::size_t i = 0; i < places.size(); i += 2) {
      Result& result = captured.emplace_back();
      result.conv.resize(shape.conv_floats());
      result.recurrent.resize(shape.recurrent_floats());
      backend->download(result.conv.data(), places[i].data(), places[i].bytes());
      backend->download(result.recurrent.data(), places[i + 1].data(), places[i + 1].bytes());
    }
    return Result{conv_state.downloaded(), state.downloaded(), out.downloaded()};
  };
  const std::vector<std::int32_t> places{2, 40, 61, 125, 149};  // 61 and 125 end a chunk
  const Result whole = run(rows, {}), with_captures = run(rows, places);
  EXPECT_EQ(whole.conv, with_captures.conv);
  EXPECT_EQ(whole.recurrent, with_captures.recurrent);
  EXPECT_EQ(whole.out, with_captures.out);
  ASSERT_EQ(captured.size(), places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Result ended = run(places[i], {});
    EXPECT_EQ(captured[i].conv, ended.conv) << places[i];
    EXPECT_EQ(captured[i].recurrent, ended.recurrent) << places[i];
  }
}

TEST(emulator_gdn, states_captured_inside_a_prompt_are_those_of_a_prompt_that_ends_there) {
  for (const CudaCase& c : cuda_cases()) {
    if (c.fuse) expect_captures(c, 32, cuda::GemmType::f32);
  }
}

TEST(emulator_gdn, states_captured_on_tensor_cores_are_those_of_a_prompt_that_ends_there) {
  expect_captures(cuda_cases().back(), 128, cuda::GemmType::bf16);
}

void run_attention(const CudaCase& c, int nh, int nkv, int hd, DType kv_type, const std::vector<Part>& parts, bool taps_wanted,
                   double tolerance = 2e-5, cuda::GemmType gemm = cuda::GemmType::f32) {
  auto backend = open_emulated(c, {}, gemm);
  ops::StateShape shape;
  shape.num_attention_layers = 2;
  shape.num_kv_heads = nkv;
  shape.head_dim = hd;
  shape.kv_type = kv_type;
  Sequences s(*backend, shape, parts);
  const std::int64_t T = s.host.num_rows;
  const int rotary = hd / 4;
  Both q_gate(*backend, T, 2 * nh * hd, 1), k(*backend, T, nkv * hd, 2), v(*backend, T, nkv * hd, 3), cosine(*backend, T, rotary / 2, 4),
      sine(*backend, T, rotary / 2, 5), out(*backend, T, nh * hd, 6), q_norm(*backend, 1, hd, 7), k_norm(*backend, 1, hd, 8);
  Both qn(*backend, T, nh * hd, 9), kn(*backend, T, nkv * hd, 10), qr(*backend, T, nh * hd, 11), kr(*backend, T, nkv * hd, 12),
      gate(*backend, T, nh * hd, 13);
  const ops::AttentionWeights device_weights{q_norm.device_data(), k_norm.device_data(), nh, nkv, hd, rotary, 1e-6f};
  const ops::AttentionWeights host_weights{q_norm.values().data(), k_norm.values().data(), nh, nkv, hd, rotary, 1e-6f};
  const ops::AttentionTaps device_taps{qn.device().data, kn.device().data, qr.device().data, kr.device().data, gate.device().data};
  const ops::AttentionTaps host_taps{qn.host().data, kn.host().data, qr.host().data, kr.host().data, gate.host().data};
  backend->begin_step(s.device, 0);
  backend->attention_mixer(1, device_weights, q_gate.device(), k.device(), v.device(), cosine.device_data(), sine.device_data(),
                           out.device(), taps_wanted ? &device_taps : nullptr);
  backend->end_step();
  ops::reference::attention_mixer(s.host, 1, host_weights, q_gate.host(), k.host(), v.host(), cosine.values().data(),
                                  sine.values().data(), out.host(), &host_taps);
  out.expect_equal("out", tolerance);
  if (taps_wanted) {
    qn.expect_equal("q_norm");
    kn.expect_equal("k_norm");
    qr.expect_equal("q_rope");
    kr.expect_equal("k_rope");
    gate.expect_equal("gate", 0);
  }
  if (kv_type != DType::f32) return;
  for (std::size_t p = 0; p < s.host_pages.size(); ++p) {
    std::vector<float> got(s.host_pages[p].size() / 4), want(got.size());
    backend->download(got.data(), s.device_pages[p].data(), got.size() * 4);
    std::memcpy(want.data(), s.host_pages[p].data(), want.size() * 4);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << "page " << p << " element " << i;
  }
}

TEST_P(emulator_mixers, attention_of_few_rows_matches_the_reference) {
  run_attention(GetParam(), 3, 1, 64, DType::f32, {{1, 0}, {1, 130}, {3, 62}}, true);
  run_attention(GetParam(), 4, 2, 32, DType::f32, {{1, 63}}, false);
  run_attention(GetParam(), 10, 2, 64, DType::f32, {{2, 64}}, false);
  run_attention(GetParam(), 2, 1, 256, DType::f32, {{1, 70}}, false);
}

TEST_P(emulator_mixers, attention_of_a_prompt_matches_the_reference) {
  run_attention(GetParam(), 2, 1, 64, DType::f32, {{70, 0}, {1, 5}, {40, 30}}, true);
}

// Operands are rounded to 8 bits of mantissa; sums are not.
TEST(emulator_attention, bf16_products_of_a_prompt_are_near_the_reference) {
  run_attention(cuda_cases().back(), 2, 1, 64, DType::f32, {{70, 0}, {1, 5}, {40, 30}}, false, 1e-2, cuda::GemmType::bf16);
  // Heads of 256 take the fused kernel, with four warps or eight.
  run_attention(cuda_cases().back(), 2, 1, 256, DType::f16, {{40, 30}, {1, 5}}, false, 1e-2, cuda::GemmType::bf16);
  run_attention(cuda_cases().back(), 4, 2, 256, DType::f32, {{150, 7}}, false, 1e-2, cuda::GemmType::bf16);
}

TEST(emulator_attention, half_precision_caches_match_the_reference) {
  for (const DType type : {DType::f16, DType::bf16}) {
    // The new row is rounded to the cache's type by both sides, from values that differ in the last float bit: a rounding may
    // fall either way.
    const double tolerance = type == DType::f16 ? 2e-4 : 2e-3;
    run_attention(cuda_cases().front(), 4, 1, 64, type, {{1, 70}}, false, tolerance);
    run_attention(cuda_cases().front(), 8, 1, 64, type, {{2, 3}}, false, tolerance);
    run_attention(cuda_cases().front(), 2, 1, 32, type, {{33, 3}}, false, tolerance);
  }
}

TEST(emulator_attention, a_row_does_not_depend_on_its_batch) {
  // The same sequence alone and beside others gives the same bits.
  std::vector<float> alone, together;
  for (const bool crowd : {false, true}) {
    auto backend = open_emulated();
    ops::StateShape shape;
    shape.num_attention_layers = 1;
    shape.num_kv_heads = 1;
    shape.head_dim = 32;
    Sequences s(*backend, shape, crowd ? std::vector<Part>{{1, 70}, {1, 300}} : std::vector<Part>{{1, 70}});
    const std::int64_t T = s.device.num_rows;
    Both q_gate(*backend, T, 2 * 2 * 32, 1), k(*backend, T, 32, 2), v(*backend, T, 32, 3), cosine(*backend, T, 4, 4), sine(*backend, T, 4, 5),
        out(*backend, T, 64, 6), norm(*backend, 1, 32, 7);
    // Rows of the first sequence must be equal in both runs: random_floats of a longer row starts alike.
    const ops::AttentionWeights weights{norm.device_data(), norm.device_data(), 2, 1, 32, 8, 1e-6f};
    backend->begin_step(s.device, 0);
    backend->attention_mixer(0, weights, q_gate.device(), k.device(), v.device(), cosine.device_data(), sine.device_data(), out.device(), nullptr);
    backend->end_step();
    std::vector<float> got = out.downloaded();
    got.resize(64);
    (crowd ? together : alone) = got;
  }
  EXPECT_EQ(alone, together);
}

TEST_P(emulator_mixers, experts_match_the_reference) {
  for (const DType type : {DType::f32, DType::q4_0}) {
    for (const std::int64_t rows : {1, 3, 70}) {
      auto backend = open_emulated(GetParam());
      const int hidden = 64, experts = 9, inner = 32, shared = 96, top_k = 3;
      const MadeWeight router = make_weight(DType::f32, 1, experts, hidden, 1), gate = make_weight(type, experts, inner, hidden, 2),
                       up = make_weight(type, experts, inner, hidden, 3), down = make_weight(type, experts, hidden, inner, 4),
                       shared_gate = make_weight(DType::q8_0, 1, shared, hidden, 5), shared_up = make_weight(DType::q8_0, 1, shared, hidden, 6),
                       shared_down = make_weight(DType::q8_0, 1, hidden, shared, 7), shared_router = make_weight(DType::bf16, 1, 1, hidden, 8);
      std::vector<std::unique_ptr<ops::Weight>> kept;
      const auto load = [&](const MadeWeight& made) {
        kept.push_back(backend->load_weight(made.data));
        return kept.back().get();
      };
      const ops::MoeWeights weights{load(router), load(gate), load(up), load(down), load(shared_gate), load(shared_up),
                                    load(shared_down), load(shared_router), top_k};
      const ops::reference::MoeMatrices matrices{router.floats.data(), gate.floats.data(), up.floats.data(), down.floats.data(),
                                                 shared_gate.floats.data(), shared_up.floats.data(), shared_down.floats.data(),
                                                 shared_router.floats.data(), experts, inner, shared, top_k};
      Both x(*backend, rows, hidden, 9, 4.0f), out(*backend, rows, hidden, 10), logits(*backend, rows, experts, 11),
          top(*backend, rows, top_k, 12), routed(*backend, rows, hidden, 13), shared_out(*backend, rows, hidden, 14),
          shared_logit(*backend, rows, 1, 15), norms(*backend, rows, top_k, 16);
      std::vector<std::int32_t> want_ids(static_cast<std::size_t>(rows * top_k)), got_ids(want_ids.size());
      const ops::Buffer ids = device_ints(*backend, got_ids);
      const ops::MoeTaps device_taps{logits.device().data, ids.i32(), top.device().data, routed.device().data,
                                     shared_out.device().data, shared_logit.device().data, norms.device().data};
      const ops::MoeTaps host_taps{logits.host().data, want_ids.data(), top.host().data, routed.host().data,
                                   shared_out.host().data, shared_logit.host().data, norms.host().data};
      backend->moe_ffn(x.device(), weights, out.device(), &device_taps);
      ops::reference::moe_ffn(x.host(), matrices, out.host(), &host_taps);
      backend->download(got_ids.data(), ids.data(), got_ids.size() * 4);
      EXPECT_EQ(got_ids, want_ids);
      // The shared expert is q8_0: 8-bit activations err by up to 1/254 of a group's largest value (kernels/moe_test.cc).
      const double relative = rows <= 8 && takes_8_bit_x(*backend, *kept[4]) ? 2e-2 : 2e-5;
      out.expect_equal("out", relative);
      logits.expect_equal("router_logits");
      top.expect_equal("topk_weights");
      routed.expect_equal("experts", relative);
      shared_out.expect_equal("shared_expert", relative);
      shared_logit.expect_equal("shared_gate_logit");
      norms.expect_equal("expert_out_norm", relative);
    }
  }
}

TEST_P(emulator_mixers, a_token_has_the_same_experts_alone_and_beside_others) {
  for (const DType shared_type : {DType::q4_0, DType::q8_0}) {  // as the experts, or not: fused kernels, or one after the other
    auto backend = open_emulated(GetParam());
    const std::int64_t hidden = 64, rows = 5;
    const int experts = 9, inner = 32, top_k = 3;
    std::vector<std::unique_ptr<ops::Weight>> kept;
    const auto load = [&](DType type, int count, std::int64_t n, std::int64_t k, unsigned seed) {
      const MadeWeight made = make_weight(type, count, n, k, seed);
      kept.push_back(backend->load_weight(made.data));
      return kept.back().get();
    };
    const ops::MoeWeights weights{load(DType::f32, 1, experts, hidden, 1), load(DType::q4_0, experts, inner, hidden, 2),
                                  load(DType::q4_0, experts, inner, hidden, 3), load(DType::q4_0, experts, hidden, inner, 4),
                                  load(shared_type, 1, inner, hidden, 5), load(shared_type, 1, inner, hidden, 6),
                                  load(shared_type, 1, hidden, inner, 7), load(DType::f32, 1, 1, hidden, 8), top_k};
    Both x(*backend, rows, hidden, 9, 4.0f), together(*backend, rows, hidden, 10), alone(*backend, rows, hidden, 11);
    backend->moe_ffn(x.device(), weights, together.device(), nullptr);
    for (std::int64_t r = 0; r < rows; ++r) {
      backend->moe_ffn({x.device().data + r * hidden, 1, hidden}, weights, {alone.device().data + r * hidden, 1, hidden}, nullptr);
    }
    std::vector<float> got(static_cast<std::size_t>(rows * hidden)), want(got.size());
    backend->download(got.data(), together.device().data, got.size() * 4);
    backend->download(want.data(), alone.device().data, want.size() * 4);
    EXPECT_EQ(got, want);
  }
}

class emulator_expert_types : public testing::TestWithParam<DType> {};

TEST_P(emulator_expert_types, grouped_products_match_the_reference) {
  auto backend = open_emulated();
  const int hidden = 256, experts = 5, inner = 256, top_k = 2;
  const std::int64_t rows = 20;
  const MadeWeight router = make_weight(DType::f32, 1, experts, hidden, 1), gate = make_weight(GetParam(), experts, inner, hidden, 2),
                   up = make_weight(GetParam(), experts, inner, hidden, 3), down = make_weight(GetParam(), experts, hidden, inner, 4);
  const auto r = backend->load_weight(router.data), g = backend->load_weight(gate.data), u = backend->load_weight(up.data),
             d = backend->load_weight(down.data);
  const MadeWeight shared = make_weight(DType::f32, 1, 4, hidden, 5), shared_down = make_weight(DType::f32, 1, hidden, 4, 6),
                   shared_router = make_weight(DType::f32, 1, 1, hidden, 7);
  const auto sg = backend->load_weight(shared.data), sd = backend->load_weight(shared_down.data), sr = backend->load_weight(shared_router.data);
  const ops::MoeWeights weights{r.get(), g.get(), u.get(), d.get(), sg.get(), sg.get(), sd.get(), sr.get(), top_k};
  const ops::reference::MoeMatrices matrices{router.floats.data(), gate.floats.data(), up.floats.data(), down.floats.data(),
                                             shared.floats.data(), shared.floats.data(), shared_down.floats.data(),
                                             shared_router.floats.data(), experts, inner, 4, top_k};
  for (const std::int64_t n : {rows, std::int64_t{2}}) {
    Both x(*backend, n, hidden, 9), out(*backend, n, hidden, 10);
    backend->moe_ffn(x.device(), weights, out.device(), nullptr);
    ops::reference::moe_ffn(x.host(), matrices, out.host(), nullptr);
    out.expect_equal(std::to_string(n) + " rows");
  }
}

INSTANTIATE_TEST_SUITE_P(every_type, emulator_expert_types,
                         testing::Values(DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k,
                                         DType::q6_k),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });
INSTANTIATE_TEST_SUITE_P(every_case, emulator_mixers, testing::ValuesIn(cuda_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace heirloom::test
