// Half layers as one kernel (a step of one token that may be recorded, sm_90): the residual stream, states and other outputs are those of
// the scalar specification, with activations of 8 bits where quantised weights take them, and of the calls one by one.
#include <gtest/gtest.h>

#include "cuda/cuda_cases.h"

namespace heirloom::test {
namespace {

struct LayerCase {
  const char* name;
  DType type, gates;
  int hidden, inner, D, nk, nv;
  bool tiled;
  bool taken = true;    // by the kernels of half a layer
  unsigned launches = 7;  // of a step: two a layer, the products, the last product, the last norm; 0: more
};

class layer_kernels : public testing::TestWithParam<LayerCase> {};

struct OneWeight {
  MadeWeight made;
  std::unique_ptr<ops::Weight> weight;
  OneWeight(ops::Backend& backend, DType type, std::int64_t rows, std::int64_t cols, unsigned seed)
      : made(make_weight(type, 1, rows, cols, seed)), weight(backend.load_weight(made.data)) {}
  bool quantised() const { return weight->type == DType::q8_0 || weight->type == DType::q4_0; }
};

// What a step leaves behind.
struct Result {
  std::vector<float> hidden, rows, normed, conv, recurrent;
};

constexpr float kEps = 1e-6f;
constexpr int kLayers = 2;

// Two layers (delta rule and FFN), then products with the normed stream and one more addition; `steps` times, each step on from the last.
struct Layers {
  LayerCase c;
  std::unique_ptr<cuda::CudaBackend> backend;
  std::int64_t qkv_rows, value_rows;
  std::vector<std::unique_ptr<OneWeight>> qkv, z, a, b, out, gate, up, down;
  std::unique_ptr<OneWeight> k_rows, v_rows, last;
  Both norm, conv_weight, dt_bias, neg_a, gated_norm, hidden, conv, recurrent;

  Layers(const LayerCase& layer_case, const CudaCase& device)
      : c(layer_case), backend(open_emulated(device)), qkv_rows((2 * c.nk + c.nv) * c.D), value_rows(c.nv * c.D),
        norm(*backend, 1, c.hidden, 1), conv_weight(*backend, qkv_rows, 4, 2, 0.5f), dt_bias(*backend, 1, c.nv, 3), neg_a(*backend, 1, c.nv, 4),
        gated_norm(*backend, 1, c.D, 5), hidden(*backend, 1, c.hidden, 6), conv(*backend, kLayers * 4, qkv_rows, 7),
        recurrent(*backend, kLayers * c.nv * c.D, c.D, 8, 0.3f) {
    for (float& v : neg_a.values()) v = -std::exp(v);
    backend->upload(neg_a.device().data, neg_a.values().data(), neg_a.values().size() * 4);
    unsigned seed = 20;
    const auto make = [&](DType type, std::int64_t rows, std::int64_t cols) { return std::make_unique<OneWeight>(*backend, type, rows, cols, seed++); };
    for (int i = 0; i < kLayers; ++i) {
      qkv.push_back(make(c.type, qkv_rows, c.hidden));
      z.push_back(make(c.type, value_rows, c.hidden));
      a.push_back(make(c.gates, c.nv, c.hidden));
      b.push_back(make(c.gates, c.nv, c.hidden));
      out.push_back(make(c.type, c.hidden, value_rows));
      gate.push_back(make(c.type, c.inner, c.hidden));
      up.push_back(make(c.type, c.inner, c.hidden));
      down.push_back(make(c.type, c.hidden, c.inner));
    }
    k_rows = make(c.type, 70, c.hidden);
    v_rows = make(c.type, 34, c.hidden);
    last = make(c.type, c.hidden, c.hidden);
  }

  ops::StepPlan plan(bool device, std::vector<ops::SequenceStep>& sequences) {
    ops::StepPlan plan;
    plan.shape.num_gdn_layers = kLayers;
    plan.shape.conv_channels = static_cast<int>(qkv_rows);
    plan.shape.num_v_heads = c.nv;
    plan.shape.head_k_dim = plan.shape.head_v_dim = c.D;
    sequences = {{0, 1, 7, device ? conv.device().data : conv.values().data(), device ? recurrent.device().data : recurrent.values().data(), {}, {}}};
    plan.sequences = sequences;
    plan.num_rows = 1;
    return plan;
  }
  ops::GdnWeights gdn(bool device) {
    const auto data = [&](Both& x) { return device ? x.device_data() : x.values().data(); };
    return {data(conv_weight), data(dt_bias), data(neg_a), data(gated_norm), c.nk, c.nv, c.D, c.D, c.tiled, kEps};
  }

  Result on_device(std::uint64_t key, int steps) {
    const auto matrix = [&](std::int64_t cols) { return std::make_unique<Both>(*backend, 1, cols, 50); };
    auto normed = matrix(c.hidden), delta = matrix(c.hidden), q = matrix(qkv_rows), zs = matrix(value_rows), as = matrix(c.nv), bs = matrix(c.nv),
         gated = matrix(value_rows), g = matrix(c.inner), u = matrix(c.inner), rows = matrix(104);
    for (int step = 0; step < steps; ++step) {
      std::vector<ops::SequenceStep> sequences;
      const ops::StepPlan step_plan = plan(true, sequences);
      const bool replayed = backend->begin_step(step_plan, key);
      if (!replayed) {
        const ops::Matrix h = hidden.device(), n = normed->device(), d = delta->device();
        const auto product = [&](ops::Matrix x, const OneWeight& weight, float* to) {
          const ops::LinearOut one{weight.weight.get(), to};
          backend->linear(x, {&one, 1});
        };
        backend->rms_norm(h, norm.device_data(), kEps, n);
        for (std::size_t i = 0; i < kLayers; ++i) {
          const ops::LinearOut projections[] = {{qkv[i]->weight.get(), q->device().data}, {z[i]->weight.get(), zs->device().data},
                                                {a[i]->weight.get(), as->device().data}, {b[i]->weight.get(), bs->device().data}};
          backend->linear(n, projections);
          backend->gdn_mixer(static_cast<int>(i), gdn(true), q->device(), zs->device(), as->device(), bs->device(), gated->device(), nullptr);
          product(gated->device(), *out[i], d.data);
          backend->add_rms_norm(h, d, norm.device_data(), kEps, n);
          const ops::LinearOut pair[] = {{gate[i]->weight.get(), g->device().data}, {up[i]->weight.get(), u->device().data}};
          backend->linear(n, pair);
          backend->swiglu(g->device(), u->device(), g->device());
          product(g->device(), *down[i], d.data);
          backend->add_rms_norm(h, d, norm.device_data(), kEps, n);
        }
        const ops::LinearOut two[] = {{k_rows->weight.get(), rows->device().data}, {v_rows->weight.get(), rows->device().data + 70}};
        backend->linear(n, two);
        product(n, *last, d.data);
        backend->add_rms_norm(h, d, norm.device_data(), kEps, n);
      }
      backend->end_step();
    }
    return {hidden.downloaded(), rows->downloaded(), normed->downloaded(), conv.downloaded(), recurrent.downloaded()};
  }

  Result reference(int steps) {
    const auto matrix = [&](std::int64_t cols) { return std::vector<float>(static_cast<std::size_t>(cols)); };
    std::vector<float> normed = matrix(c.hidden), delta = normed, q = matrix(qkv_rows), zs = matrix(value_rows), as = matrix(c.nv), bs = as,
                       gated = zs, g = matrix(c.inner), u = g, rows = matrix(104);
    const auto view = [](std::vector<float>& x) { return ops::Matrix{x.data(), 1, static_cast<std::int64_t>(x.size())}; };
    const auto product = [&](const std::vector<float>& x, const OneWeight& weight, float* to, bool exact = false) {
      std::vector<float> in = weight.quantised() && !exact ? as_8_bit(x) : x;
      ops::reference::linear(view(in), weight.made.floats.data(), nullptr, {to, 1, weight.weight->rows});
    };
    const float* w = norm.values().data();
    for (int step = 0; step < steps; ++step) {
      std::vector<ops::SequenceStep> sequences;
      const ops::StepPlan step_plan = plan(false, sequences);
      ops::reference::rms_norm(hidden.host(), w, kEps, view(normed));
      for (std::size_t i = 0; i < kLayers; ++i) {
        product(normed, *qkv[i], q.data());
        product(normed, *z[i], zs.data());
        product(normed, *a[i], as.data(), c.taken);  // gates are made of the floats there
        product(normed, *b[i], bs.data(), c.taken);
        ops::reference::gdn_mixer(step_plan, static_cast<int>(i), gdn(false), view(q), view(zs), view(as), view(bs), view(gated), nullptr);
        product(gated, *out[i], delta.data());
        ops::reference::add_rms_norm(hidden.host(), view(delta), w, kEps, view(normed));
        product(normed, *gate[i], g.data());
        product(normed, *up[i], u.data());
        ops::reference::swiglu(view(g), view(u), view(g));
        product(g, *down[i], delta.data());
        ops::reference::add_rms_norm(hidden.host(), view(delta), w, kEps, view(normed));
      }
      product(normed, *k_rows, rows.data());
      product(normed, *v_rows, rows.data() + 70);
      product(normed, *last, delta.data());
      ops::reference::add_rms_norm(hidden.host(), view(delta), w, kEps, view(normed));
    }
    return {hidden.values(), rows, normed, conv.values(), recurrent.values()};
  }
};

void expect_close(const std::vector<float>& got, const std::vector<float>& wanted, double tolerance, const std::string& what) {
  double largest = 1e-3, worst = 0;
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    worst = error <= worst ? worst : error;  // a NaN stays
  }
  EXPECT_LE(worst / largest, tolerance) << what;
}
void expect_close(const Result& got, const Result& wanted, double tolerance) {
  expect_close(got.hidden, wanted.hidden, tolerance, "residual stream");
  expect_close(got.rows, wanted.rows, tolerance, "products with the normed stream");
  expect_close(got.normed, wanted.normed, tolerance, "normed stream");
  expect_close(got.conv, wanted.conv, tolerance, "convolution state");
  expect_close(got.recurrent, wanted.recurrent, tolerance, "recurrent state");
}

std::vector<CudaCase> layer_devices() {
  std::vector<CudaCase> devices{{"sm90", "sm90", emulator::Order::ascending, true}, {"sm90_descending", "sm90", emulator::Order::descending, true}};
  if (cuda::list_devices().front().usable) devices.push_back({"gpu", "", emulator::Order::ascending, true, true});
  return devices;
}

TEST(layer_steps, a_recorded_step_ends_with_the_next_weight) {
  const LayerCase c{"q8_0", DType::q8_0, DType::q8_0, 256, 64, 64, 1, 1, false};
  Layers layers(c, layer_devices().front());
  layers.on_device(1, 3);  // two as they are (the first one allocates), one recorded
  const OneWeight another(*layers.backend, DType::q8_0, 64, 256, 99);
  std::vector<ops::SequenceStep> sequences;
  const ops::StepPlan plan = layers.plan(true, sequences);
  EXPECT_FALSE(layers.backend->begin_step(plan, 1)) << "it was made of the weights before";
  layers.backend->abandon_step();
}

std::string layer_case_name(const testing::TestParamInfo<LayerCase>& info) { return info.param.name; }

// Differences: a code of 8 bits that falls to the other side of a half. The steps go on from states that carry them.
TEST_P(layer_kernels, match_the_reference_and_the_calls_one_by_one) {
  for (const CudaCase& device : layer_devices()) {
    SCOPED_TRACE(device.name);
    Layers layers(GetParam(), device), plain(GetParam(), device);
    if (!layers.backend->device().info().clusters) continue;
    const int steps = device.order == emulator::Order::descending ? 1 : 2;
    const Result fused = layers.on_device(1, steps), one_by_one = plain.on_device(0, steps);
    if (!GetParam().taken || !is_quantized(GetParam().gates)) expect_close(fused, one_by_one, 1e-2);
    expect_close(fused, Layers(GetParam(), device).reference(steps), 6e-2);
    // Launches are counted when they are made, not when they are replayed: here for the first step alone.
    Layers counted(GetParam(), device);
    const std::uint64_t before = counted.backend->device().launches();
    counted.on_device(1, 1);
    const std::uint64_t launches = counted.backend->device().launches() - before;
    if (GetParam().launches > 0) EXPECT_EQ(launches, GetParam().launches);
    else EXPECT_GT(launches, 7u);
  }
}

INSTANTIATE_TEST_SUITE_P(every_shape, layer_kernels,
                         testing::Values(LayerCase{"q8_0", DType::q8_0, DType::q8_0, 256, 384, 64, 2, 2, false},
                                         LayerCase{"q4_0_one_head", DType::q4_0, DType::q4_0, 512, 64, 64, 1, 1, true},
                                         LayerCase{"q8_0_wide_heads", DType::q8_0, DType::f32, 256, 96, 128, 2, 2, false},
                                         LayerCase{"q4_0_wide_heads", DType::q4_0, DType::bf16, 256, 1088, 128, 1, 1, true}),
                         layer_case_name);

// More value heads than key heads: a delta rule is three kernels (gdn_token.h), and what the FFN left in parts is summed before it.
INSTANTIATE_TEST_SUITE_P(value_heads, layer_kernels,
                         testing::Values(LayerCase{"two_value_heads", DType::q8_0, DType::q8_0, 256, 64, 64, 2, 4, false, false, 12},
                                         LayerCase{"two_value_heads_tiled", DType::q4_0, DType::q4_0, 512, 64, 128, 1, 2, true, false, 12},
                                         LayerCase{"four_value_heads", DType::q4_0, DType::q8_0, 768, 96, 64, 2, 8, true, false, 12}),
                         layer_case_name);

// Shapes and types that the kernels do not take go on one by one, in a step that may be recorded too.
INSTANTIATE_TEST_SUITE_P(other_shape, layer_kernels,
                         testing::Values(LayerCase{"hidden_of_96", DType::q8_0, DType::q8_0, 96, 64, 64, 1, 2, false, false, 0},
                                         LayerCase{"heads_of_32", DType::q8_0, DType::q8_0, 256, 64, 32, 2, 2, false, false, 0},
                                         LayerCase{"two_value_heads_odd", DType::q8_0, DType::q8_0, 256, 64, 64, 1, 3, false, false, 0},
                                         LayerCase{"k_quants", DType::q4_k, DType::q8_0, 256, 256, 64, 4, 4, false, false, 0},
                                         LayerCase{"floats", DType::f32, DType::f32, 256, 64, 64, 1, 1, false, false, 0}),
                         layer_case_name);

}  // namespace
}  // namespace heirloom::test
