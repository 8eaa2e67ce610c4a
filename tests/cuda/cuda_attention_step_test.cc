// Attention of one token in a step that may be recorded, on sm_90: projections, attention_step and attention_out leave the residual stream
// and the pages that the scalar specification leaves, with activations of 8 bits where quantised weights take them.
#include <gtest/gtest.h>

#include "cuda/cuda_cases.h"
#include "cuda/cuda_sequences.h"

namespace heirloom::test {
namespace {

struct StepCase {
  const char* name;
  int nh, nkv, hd, rotary;
  DType kv_type, weights;
  int past;
  unsigned launches;  // of a step: projections, attention_step, attention_out, residual_sum, the last norm; others where something is not taken
};

class attention_steps : public testing::TestWithParam<StepCase> {};

constexpr int kHidden = 256, kLayer = 1;
constexpr float kEps = 1e-6f;

struct Result {
  std::vector<float> hidden, normed, pages;
  unsigned launches = 0;
};

struct Layer {
  StepCase c;
  std::unique_ptr<cuda::CudaBackend> backend;
  ops::StateShape shape;
  Both hidden, norm, q_norm, k_norm, cosine, sine;
  std::vector<MadeWeight> made;
  std::vector<std::unique_ptr<ops::Weight>> weights;  // q and gate, k, v, out

  Layer(const StepCase& step_case, const CudaCase& device)
      : c(step_case), backend(open_emulated(device)), hidden(*backend, 1, kHidden, 1), norm(*backend, 1, kHidden, 2), q_norm(*backend, 1, c.hd, 3),
        k_norm(*backend, 1, c.hd, 4), cosine(*backend, 1, c.rotary / 2, 5), sine(*backend, 1, c.rotary / 2, 6) {
    shape.num_attention_layers = kLayer + 1;
    shape.num_kv_heads = c.nkv;
    shape.head_dim = c.hd;
    shape.kv_type = c.kv_type;
    const std::int64_t rows[] = {2 * c.nh * c.hd, c.nkv * c.hd, c.nkv * c.hd, kHidden};
    for (unsigned i = 0; i < 4; ++i) {
      made.push_back(make_weight(c.weights, 1, rows[i], i == 3 ? c.nh * c.hd : kHidden, 30 + i));
      weights.push_back(backend->load_weight(made.back().data));
    }
  }

  std::vector<float> values_of(const std::vector<std::byte>& page) const {
    std::vector<float> out(page.size() / dtype_info(c.kv_type).block_bytes);
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t half;
      if (c.kv_type == DType::f32) {
        std::memcpy(&out[i], page.data() + 4 * i, 4);
        continue;
      }
      std::memcpy(&half, page.data() + 2 * i, 2);
      out[i] = c.kv_type == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
    return out;
  }

  Result on_device(std::uint64_t key) {
    Sequences s(*backend, shape, {{1, c.past}});
    Both normed(*backend, 1, kHidden, 7), delta(*backend, 1, kHidden, 8), q_gate(*backend, 1, 2 * c.nh * c.hd, 9), k(*backend, 1, c.nkv * c.hd, 10),
        v(*backend, 1, c.nkv * c.hd, 11), out(*backend, 1, c.nh * c.hd, 12);
    const ops::AttentionWeights attention{q_norm.device_data(), k_norm.device_data(), c.nh, c.nkv, c.hd, c.rotary, kEps};
    backend->begin_step(s.device, key);
    const std::uint64_t before = backend->device().launches();
    backend->rms_norm(hidden.device(), norm.device_data(), kEps, normed.device());
    const ops::LinearOut projections[] = {
        {weights[0].get(), q_gate.device().data}, {weights[1].get(), k.device().data}, {weights[2].get(), v.device().data}};
    backend->linear(normed.device(), projections);
    backend->attention_mixer(kLayer, attention, q_gate.device(), k.device(), v.device(), cosine.device_data(), sine.device_data(), out.device(),
                             nullptr);
    const ops::LinearOut last{weights[3].get(), delta.device().data};
    backend->linear(out.device(), {&last, 1});
    backend->add_rms_norm(hidden.device(), delta.device(), norm.device_data(), kEps, normed.device());
    backend->end_step();
    Result result{hidden.downloaded(), normed.downloaded(), {}, static_cast<unsigned>(backend->device().launches() - before)};
    for (std::size_t p = 0; p < s.host_pages.size(); ++p) {
      std::vector<std::byte> page(s.host_pages[p].size());
      backend->download(page.data(), s.device_pages[p].data(), page.size());
      const std::vector<float> values = values_of(page);
      result.pages.insert(result.pages.end(), values.begin(), values.end());
    }
    return result;
  }

  Result reference() {
    Sequences s(*backend, shape, {{1, c.past}});
    const auto matrix = [](std::vector<float>& x) { return ops::Matrix{x.data(), 1, static_cast<std::int64_t>(x.size())}; };
    const auto zeros = [](int n) { return std::vector<float>(static_cast<std::size_t>(n)); };
    std::vector<float> normed = zeros(kHidden), delta = normed, q_gate = zeros(2 * c.nh * c.hd), k = zeros(c.nkv * c.hd), v = k,
                       out = zeros(c.nh * c.hd);
    const auto product = [&](std::vector<float>& x, std::size_t weight, std::vector<float>& to) {
      std::vector<float> in = takes_8_bit_x(*backend, *weights[weight]) ? as_8_bit(x) : x;
      ops::reference::linear(matrix(in), made[weight].floats.data(), nullptr, matrix(to));
    };
    ops::reference::rms_norm(hidden.host(), norm.values().data(), kEps, matrix(normed));
    product(normed, 0, q_gate);
    product(normed, 1, k);
    product(normed, 2, v);
    ops::reference::attention_mixer(s.host, kLayer, {q_norm.values().data(), k_norm.values().data(), c.nh, c.nkv, c.hd, c.rotary, kEps},
                                    matrix(q_gate), matrix(k), matrix(v), cosine.values().data(), sine.values().data(), matrix(out), nullptr);
    product(out, 3, delta);
    ops::reference::add_rms_norm(hidden.host(), matrix(delta), norm.values().data(), kEps, matrix(normed));
    Result result{hidden.values(), normed, {}};
    for (const std::vector<std::byte>& page : s.host_pages) {
      const std::vector<float> values = values_of(page);
      result.pages.insert(result.pages.end(), values.begin(), values.end());
    }
    return result;
  }
};

void expect_close(const std::vector<float>& got, const std::vector<float>& wanted, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double largest = 1e-3, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    worst = error <= worst ? worst : error;  // a NaN stays
  }
  EXPECT_LE(worst / largest, tolerance) << what;
}

// Differences: a code of 8 bits, or a bit of the cache's type, that falls to the other side of a half.
TEST_P(attention_steps, leave_the_stream_and_the_pages_of_the_reference) {
  std::vector<CudaCase> devices{{"sm90", "sm90", emulator::Order::ascending, true}, {"sm90_descending", "sm90", emulator::Order::descending, true}};
  if (cuda::list_devices().front().usable) devices.push_back({"gpu", "", emulator::Order::ascending, true, true});
  for (const CudaCase& device : devices) {
    SCOPED_TRACE(device.name);
    Layer recorded(GetParam(), device), plain(GetParam(), device), host(GetParam(), device);
    if (!recorded.backend->device().info().clusters) continue;
    const Result got = recorded.on_device(1), one_by_one = plain.on_device(0), wanted = host.reference();
    expect_close(got.hidden, one_by_one.hidden, 2e-2, "residual stream, beside the calls one by one");
    expect_close(got.hidden, wanted.hidden, 2e-2, "residual stream");
    expect_close(got.normed, wanted.normed, 2e-2, "normed stream");
    expect_close(got.pages, wanted.pages, 1e-2, "pages");
    EXPECT_EQ(got.launches, GetParam().launches);
  }
}

INSTANTIATE_TEST_SUITE_P(
    every_shape, attention_steps,
    testing::Values(StepCase{"first_token", 4, 2, 64, 16, DType::f16, DType::q8_0, 0, 5}, StepCase{"end_of_a_page", 4, 2, 64, 16, DType::f16, DType::q4_0, 63, 5},
                    StepCase{"start_of_a_page", 4, 1, 64, 64, DType::bf16, DType::q8_0, 64, 5},
                    StepCase{"two_blocks_a_kv_head", 12, 2, 64, 32, DType::f16, DType::q8_0, 130, 5},
                    StepCase{"one_head_each", 2, 2, 128, 32, DType::bf16, DType::q4_0, 5, 5},
                    StepCase{"heads_of_256", 8, 2, 256, 64, DType::f16, DType::q8_0, 200, 5},
                    StepCase{"many_pages", 1, 1, 256, 64, DType::bf16, DType::q8_0, 64 * 67 + 9, 5},
                    StepCase{"weights_without_a_kernel", 4, 2, 64, 16, DType::f16, DType::q6_k, 70, 5},
                    StepCase{"float_cache", 4, 2, 64, 16, DType::f32, DType::q8_0, 70, 6}),
    [](const testing::TestParamInfo<StepCase>& step_case) { return std::string(step_case.param.name); });

}  // namespace
}  // namespace heirloom::test
