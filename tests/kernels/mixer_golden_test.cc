// gdn_mixer and attention_mixer against the stage dumps of the golden kit: the scalar specification itself, and the CPU
// backend on every tier of this machine.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "base/half.h"
#include "format/safetensors.h"
#include "kernels/op_cases.h"
#include "ops/reference.h"
#include "support/golden.h"

namespace heirloom {
namespace {

using ops::Matrix;
using test::expect_close;
using test::matrix;

struct GoldenModel {
  const char* name;
  const char* prefix;  // of layer names in the checkpoint
  int nk, nv, d;       // GDN heads and their size
  int nh, nkv, hd;     // attention heads and their size
};

constexpr GoldenModel kModels[] = {
    {"dense_a", "model.layers.", 3, 6, 32, 3, 1, 64},
    {"moe_a", "model.language_model.layers.", 2, 4, 32, 3, 1, 64},
    {"moe_b", "model.language_model.layers.", 1, 2, 128, 2, 1, 256},
    {"mini_a", "model.language_model.layers.", 4, 4, 32, 3, 1, 64},
};

std::vector<float> floats(const TensorSource& file, const std::string& name) {
  const TensorView& tensor = file.require(name);
  std::vector<float> values(tensor.elements());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.type == DType::f32) {
      std::memcpy(&values[i], tensor.data.data() + 4 * i, 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, tensor.data.data() + 2 * i, 2);
      values[i] = bf16_to_f32(bits);
    }
  }
  return values;
}

class mixer_golden : public testing::TestWithParam<GoldenModel> {
 protected:
  void SetUp() override {
    const std::string name = GetParam().name;
    const auto dump = test::golden("dumps/" + name + "/stage_p65.safetensors");
    const auto model = test::golden("models/" + name + "/model.safetensors");
    HEIRLOOM_REQUIRE(dump);
    HEIRLOOM_REQUIRE(model);
    dump_ = std::make_unique<SafetensorsFile>(dump);
    model_ = std::make_unique<SafetensorsFile>(model);
  }
  std::vector<float> dump(const std::string& name) const { return floats(*dump_, name); }
  std::vector<float> weight(const std::string& name) const { return floats(*model_, GetParam().prefix + name); }

  static constexpr int kTokens = 65;
  std::unique_ptr<SafetensorsFile> dump_, model_;
};

TEST_P(mixer_golden, gdn_mixer_matches_every_stage_and_state) {
  const GoldenModel& m = GetParam();
  const int channels = (2 * m.nk + m.nv) * m.d;
  std::vector<float> conv = weight("0.linear_attn.conv1d.weight"), dt_bias = weight("0.linear_attn.dt_bias"),
                     neg_exp_a = weight("0.linear_attn.A_log"), norm = weight("0.linear_attn.norm.weight");
  for (float& a : neg_exp_a) a = -std::exp(a);
  const ops::GdnWeights weights{conv.data(), dt_bias.data(), neg_exp_a.data(), norm.data(), m.nk, m.nv, m.d, m.d, false, 1e-6f};

  ops::StepPlan plan;
  plan.shape.num_gdn_layers = 1;
  plan.shape.conv_channels = channels;
  plan.shape.num_v_heads = m.nv;
  plan.shape.head_k_dim = plan.shape.head_v_dim = m.d;
  plan.num_rows = kTokens;
  std::vector<float> conv_state(plan.shape.conv_floats()), recurrent(plan.shape.recurrent_floats());
  plan.sequences.push_back({.first_row = 0, .num_rows = kTokens, .past_tokens = 0, .conv = conv_state.data(),
                            .recurrent = recurrent.data(), .captures = {}, .pages = {}});

  const auto out_of = [](std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); };
  std::vector<float> conv_out = out_of(kTokens * channels), q = out_of(kTokens * m.nk * m.d), k = q,
                     g = out_of(kTokens * m.nv), beta = g, core = out_of(kTokens * m.nv * m.d), out = core;
  const ops::GdnTaps taps{conv_out.data(), q.data(), k.data(), g.data(), beta.data(), core.data()};
  const std::string stage = "lm.layer0.gdn.";
  const std::vector<float> zeros_conv = conv_state, zeros_recurrent = recurrent;
  std::vector<float> qkv = dump(stage + "in_proj_qkv"), z = dump(stage + "in_proj_z"), a = dump(stage + "in_proj_a"),
                     b = dump(stage + "in_proj_b");
  const auto check = [&](const std::string& who, const auto& op) {
    conv_state = zeros_conv;
    recurrent = zeros_recurrent;
    op(matrix(qkv, kTokens), matrix(z, kTokens), matrix(a, kTokens), matrix(b, kTokens), matrix(out, kTokens), &taps);
    expect_close(conv_out, dump(stage + "conv_out"), 1e-5, who + ": conv_out");
    expect_close(q, dump(stage + "q_l2norm"), 1e-5, who + ": q_l2norm");
    expect_close(k, dump(stage + "k_l2norm"), 1e-5, who + ": k_l2norm");
    expect_close(g, dump(stage + "g"), 1e-5, who + ": g");
    expect_close(beta, dump(stage + "beta"), 1e-5, who + ": beta");
    expect_close(core, dump(stage + "core_out"), 2e-5, who + ": core_out");
    expect_close(out, dump(stage + "gated_norm"), 1e-4, who + ": gated_norm");
    expect_close(recurrent, dump(stage + "recurrent_state"), 1e-4, who + ": recurrent_state");
    const std::vector<float> state = dump(stage + "conv_state");  // [channels, 4]; ours is [4, channels]
    std::vector<float> transposed(state.size());
    for (std::size_t c = 0; c < state.size() / 4; ++c) {
      for (std::size_t j = 0; j < 4; ++j) transposed[j * state.size() / 4 + c] = state[c * 4 + j];
    }
    expect_close(conv_state, transposed, 0.0, who + ": conv_state");
  };
  check("specification", [&](auto... args) { ops::reference::gdn_mixer(plan, 0, weights, args...); });
  for (const CpuTier tier : test::supported_tiers()) {
    cpu::CpuBackend backend({.threads = 2, .tier = tier, .profiler = nullptr});
    check(std::string(cpu_tier_name(tier)), [&](auto... args) {
      backend.begin_step(plan, 0);
      backend.gdn_mixer(0, weights, args...);
      backend.end_step();
    });
  }
}

TEST_P(mixer_golden, attention_mixer_matches_every_stage) {
  const GoldenModel& m = GetParam();
  const std::string stage = "lm.layer3.attn.";
  std::vector<float> in = dump(stage + "in"), v = dump(stage + "v");
  std::vector<float> q_gate(static_cast<std::size_t>(kTokens * m.nh * 2 * m.hd)),
      k(static_cast<std::size_t>(kTokens * m.nkv * m.hd));
  ops::reference::linear(matrix(in, kTokens), weight("3.self_attn.q_proj.weight").data(), nullptr, matrix(q_gate, kTokens));
  ops::reference::linear(matrix(in, kTokens), weight("3.self_attn.k_proj.weight").data(), nullptr, matrix(k, kTokens));
  std::vector<float> q_norm = weight("3.self_attn.q_norm.weight"), k_norm = weight("3.self_attn.k_norm.weight");
  for (float& w : q_norm) w += 1;
  for (float& w : k_norm) w += 1;
  const int rotary = m.hd / 4;
  const ops::AttentionWeights weights{q_norm.data(), k_norm.data(), m.nh, m.nkv, m.hd, rotary, 1e-6f};

  // The dump's cos and sin have two equal halves; ops take one.
  const auto halves = [&](const std::vector<float>& full) {
    std::vector<float> half;
    for (std::size_t i = 0; i < full.size(); ++i) {
      if (i % static_cast<std::size_t>(rotary) < static_cast<std::size_t>(rotary / 2)) half.push_back(full[i]);
    }
    return half;
  };
  const std::vector<float> cos = halves(dump("lm.rope_cos")), sin = halves(dump("lm.rope_sin"));

  ops::StepPlan plan;
  plan.shape.num_attention_layers = 1;
  plan.shape.num_kv_heads = m.nkv;
  plan.shape.head_dim = m.hd;
  plan.num_rows = kTokens;
  std::vector<std::vector<std::byte>> memory(2, std::vector<std::byte>(plan.shape.page_bytes()));
  std::vector<std::byte*> pages{memory[0].data(), memory[1].data()};
  plan.sequences.push_back({.first_row = 0, .num_rows = kTokens, .past_tokens = 0, .conv = nullptr, .recurrent = nullptr,
                            .captures = {}, .pages = pages});

  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  std::vector<float> qn(size(kTokens * m.nh * m.hd)), kn(size(kTokens * m.nkv * m.hd)), qr = qn, kr = kn, gate = qn, out = qn;
  const ops::AttentionTaps taps{qn.data(), kn.data(), qr.data(), kr.data(), gate.data()};
  const auto check = [&](const std::string& who, const auto& op) {
    op(matrix(q_gate, kTokens), matrix(k, kTokens), matrix(v, kTokens), cos.data(), sin.data(), matrix(out, kTokens), &taps);
    expect_close(qn, dump(stage + "q_norm"), 1e-5, who + ": q_norm");
    expect_close(kn, dump(stage + "k_norm"), 1e-5, who + ": k_norm");
    expect_close(qr, dump(stage + "q_rope"), 1e-5, who + ": q_rope");
    expect_close(kr, dump(stage + "k_rope"), 1e-5, who + ": k_rope");
    expect_close(gate, dump(stage + "gate"), 1e-5, who + ": gate");
    expect_close(out, dump(stage + "gated"), 1e-5, who + ": gated");
  };
  check("specification", [&](auto... args) { ops::reference::attention_mixer(plan, 0, weights, args...); });
  for (const CpuTier tier : test::supported_tiers()) {
    cpu::CpuBackend backend({.threads = 2, .tier = tier, .profiler = nullptr});
    check(std::string(cpu_tier_name(tier)), [&](auto... args) {
      backend.begin_step(plan, 0);
      backend.attention_mixer(0, weights, args...);
      backend.end_step();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(all, mixer_golden, testing::ValuesIn(kModels),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace heirloom
