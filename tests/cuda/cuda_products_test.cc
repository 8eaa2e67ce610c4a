// Products of many rows: several as one batch, cut where whole waves of tiles end, from kept FP32 rows; and their biases, which the next op adds on its way.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "cuda/cuda_cases.h"
#include "cuda/cuda_sequences.h"

namespace heirloom::test {
namespace {

using Results = std::vector<std::vector<float>>;

/// The same calls with and without fusion give the same bits, in every matrix, with fewer launches where something can be fused. On a card the
/// vendor's products may sum in another order for another shape, and take a batch as one launch.
void expect_same_without_fusion(const CudaCase& c, const std::function<Results(cuda::CudaBackend&)>& run, bool fused = true) {
  Results results[2];
  std::uint64_t launches[2];
  for (const bool fuse : {false, true}) {
    CudaCase with = c;
    with.fuse = fuse;
    auto backend = open_emulated(with);
    const std::uint64_t before = backend->device().launches();
    results[fuse] = run(*backend);
    launches[fuse] = backend->device().launches() - before;
  }
  if (!c.hardware) {
    EXPECT_EQ(results[0], results[1]) << c.name;
    EXPECT_EQ(launches[1] < launches[0], fused) << c.name;
    return;
  }
  for (std::size_t m = 0; m < results[0].size(); ++m) {
    for (std::size_t i = 0; i < results[0][m].size(); ++i) {
      const float plain = results[0][m][i];
      ASSERT_NEAR(results[1][m][i], plain, 2e-5 * (1 + std::abs(plain))) << c.name << ": matrix " << m << ", element " << i;
    }
  }
}

class emulator_products : public testing::TestWithParam<CudaCase> {};

TEST_P(emulator_products, of_one_shape_side_by_side_match_the_reference) {
  constexpr std::int64_t kCols = 64, kOut = 21;
  for (const std::int64_t rows : {9, 70}) {
    auto backend = open_emulated(GetParam());
    Both x(*backend, rows, kCols, 1), together(*backend, 3 * rows, kOut, 2), apart(*backend, rows, kOut, 3), biases(*backend, 3, kOut, 4);
    std::vector<std::unique_ptr<ops::Weight>> weights;
    std::vector<ops::LinearOut> outs;
    for (unsigned i = 0; i < 4; ++i) {
      const MadeWeight made = make_weight(i % 2 ? DType::q8_0 : DType::f16, 1, kOut, kCols, 10 + i);
      weights.push_back(backend->load_weight(made.data));
      const bool last = i == 3;
      float* out = last ? apart.device().data : together.device().data + i * rows * kOut;
      outs.push_back({weights.back().get(), out, last ? nullptr : biases.device_data() + i * kOut});
      const ops::Matrix expected{last ? apart.values().data() : together.values().data() + i * rows * kOut, rows, kOut};
      ops::reference::linear(x.host(), made.floats.data(), last ? nullptr : biases.values().data() + i * kOut, expected);
    }
    for (int use = 0; use < 2; ++use) {  // the second one from kept rows
      backend->linear(x.device(), outs);
      together.expect_equal("three that follow each other");
      apart.expect_equal("one elsewhere");
    }
    // Without biases they wait for an op that wants them as one, and are written for any other.
    for (std::size_t i = 0; i < 3; ++i) {
      outs[i].bias = nullptr;
      float* values = together.values().data() + static_cast<std::int64_t>(i) * rows * kOut;
      for (std::int64_t at = 0; at < rows * kOut; ++at) values[at] -= biases.values()[i * kOut + static_cast<std::size_t>(at % kOut)];
    }
    backend->linear(x.device(), outs);
    backend->add(x.device(), x.device());  // later than the products that read it
    together.expect_equal("products without biases");
    apart.expect_equal("the last one of them");
  }
}

TEST_P(emulator_products, wider_than_whole_waves_of_tiles_match_the_reference) {
  constexpr std::int64_t kRows = 9, kCols = 32, kOut = 2048 + 80;
  auto backend = open_emulated(GetParam());
  const MadeWeight made = make_weight(DType::q8_0, 1, kOut, kCols, 1);
  const auto weight = backend->load_weight(made.data);
  Both x(*backend, kRows, kCols, 2), out(*backend, kRows, kOut, 3), bias(*backend, 1, kOut, 4);
  const ops::LinearOut to{weight.get(), out.device().data, bias.device_data()};
  backend->linear(x.device(), {&to, 1});
  ops::reference::linear(x.host(), made.floats.data(), bias.values().data(), out.host());
  out.expect_equal("two parts");
}

TEST_P(emulator_products, biases_on_the_way_of_the_next_op_change_no_result) {
  constexpr std::int64_t kRows = 9, kCols = 32;
  for (const int width : {13, 1100, 2200, 2201, 4612}) {
    const MadeWeight first = make_weight(DType::f16, 1, width, kCols, 1);
    expect_same_without_fusion(GetParam(), [&](cuda::CudaBackend& backend) {
      const auto weight = backend.load_weight(first.data);
      Both x(backend, kRows, kCols, 2), bias(backend, 1, width, 3), norm_weight(backend, 1, width, 4), norm_bias(backend, 1, width, 5),
          residual(backend, kRows, width, 6), delta(backend, kRows, width, 7), normed(backend, kRows, width, 8), plain(backend, kRows, width, 9);
      std::vector<Both> gelus;
      gelus.reserve(2);
      for (const ops::Gelu kind : {ops::Gelu::tanh, ops::Gelu::erf}) {
        Both& out = gelus.emplace_back(backend, kRows, width, 10u);
        const ops::LinearOut to{weight.get(), out.device().data, bias.device_data()};
        backend.linear(x.device(), {&to, 1});
        backend.gelu(out.device(), kind);
      }
      const ops::LinearOut to_delta{weight.get(), delta.device().data, bias.device_data()};
      backend.linear(x.device(), {&to_delta, 1});
      backend.add(residual.device(), delta.device());
      backend.layer_norm(residual.device(), norm_weight.device_data(), norm_bias.device_data(), 1e-6f, normed.device());
      Results results{gelus[0].downloaded(), gelus[1].downloaded(), residual.downloaded(), normed.downloaded()};
      // Without a norm behind the sum, and without anything behind the product.
      backend.linear(x.device(), {&to_delta, 1});
      backend.add(residual.device(), delta.device());
      const ops::LinearOut to_plain{weight.get(), plain.device().data, bias.device_data()};
      backend.linear(x.device(), {&to_plain, 1});
      for (const Both* out : {&residual, &plain}) results.push_back(out->downloaded());
      // Memory that is freed while a bias waits.
      {
        Both unread(backend, kRows, width, 11);
        const ops::LinearOut to_unread{weight.get(), unread.device().data, bias.device_data()};
        backend.linear(x.device(), {&to_unread, 1});
      }
      const ops::Buffer next = backend.make_buffer(static_cast<std::size_t>(kRows * width) * 4);
      backend.zero(next.data(), next.bytes());
      std::vector<float> zeros(static_cast<std::size_t>(kRows * width), 1.0f);
      backend.download(zeros.data(), next.data(), next.bytes());
      EXPECT_EQ(zeros, std::vector<float>(zeros.size(), 0.0f));
      return results;
    });
  }
}

// The four products that the delta rule takes in are one, in rows of all their columns, where every sequence is long.
TEST_P(emulator_products, side_by_side_for_the_delta_rule_change_no_result) {
  constexpr int kHeads = 2, kDim = 32, kCols = 64, kChannels = 3 * kHeads * kDim;
  for (const std::vector<Part>& parts : {std::vector<Part>{{70, 61}, {5, 0}}, std::vector<Part>{{12, 3}, {1, 4}}}) {
    const auto run = [&](cuda::CudaBackend& backend) {
      ops::StateShape shape;
      shape.num_gdn_layers = 1;
      shape.conv_channels = kChannels;
      shape.num_v_heads = kHeads;
      shape.head_k_dim = shape.head_v_dim = kDim;
      Sequences s(backend, shape, parts);
      const std::int64_t rows = s.device.num_rows;
      Both x(backend, rows, kCols, 1), qkv(backend, rows, kChannels, 2), z(backend, rows, kHeads * kDim, 3), gates(backend, 2 * rows, kHeads, 4),
          out(backend, rows, kHeads * kDim, 5), conv(backend, kChannels, 4, 6), dt(backend, 1, kHeads, 7), norm(backend, 1, kDim, 9);
      const std::vector<float> minus(kHeads, -0.5f);
      const ops::Buffer neg = backend.make_buffer(std::span<const float>(minus));
      const ops::Matrix a{gates.device().data, rows, kHeads}, b{gates.device().data + rows * kHeads, rows, kHeads};
      std::vector<std::unique_ptr<ops::Weight>> weights;
      std::vector<ops::LinearOut> outs;
      for (const auto& [to, columns] : {std::pair{qkv.device().data, kChannels}, {z.device().data, kHeads * kDim}, {a.data, kHeads}, {b.data, kHeads}}) {
        weights.push_back(backend.load_weight(make_weight(DType::q8_0, 1, columns, kCols, 20 + static_cast<unsigned>(outs.size())).data));
        outs.push_back({weights.back().get(), to});
      }
      const ops::GdnWeights mixer{conv.device_data(), dt.device_data(), neg.f32(), norm.device_data(), kHeads, kHeads, kDim, kDim, false, 1e-6f};
      backend.begin_step(s.device, 0);
      backend.linear(x.device(), outs);
      backend.gdn_mixer(0, mixer, qkv.device(), z.device(), a, b, out.device(), nullptr);
      backend.end_step();
      Results results{out.downloaded()};
      for (std::size_t i = 0; i < parts.size(); ++i) {
        results.push_back(s.conv[i]->downloaded());
        results.push_back(s.recurrent[i]->downloaded());
      }
      return results;
    };
    const bool all_long = std::ranges::all_of(parts, [](const Part& part) { return part.rows > 1; });
    expect_same_without_fusion(GetParam(), run, all_long);
  }
}

// q, k and v of few rows are one product too, without biases of any number.
TEST_P(emulator_products, side_by_side_for_attention_of_segments_change_no_result) {
  constexpr int kHeads = 2, kDim = 12, kWidth = kHeads * kDim, kCols = 32;
  for (const std::vector<std::int32_t>& segments : {std::vector<std::int32_t>{0, 40, 61}, std::vector<std::int32_t>{0, 330}}) {
    const std::int64_t rows = segments.back();
    for (const bool biased : {false, true}) {
      Results results[2];
      for (const bool fuse : {false, true}) {
        CudaCase with = GetParam();
        with.fuse = fuse;
        auto backend = open_emulated(with);
        Both x(*backend, rows, kCols, 1), q(*backend, rows, kWidth, 2), k(*backend, rows, kWidth, 3), v(*backend, rows, kWidth, 4),
            out(*backend, rows, kWidth, 5), bias(*backend, 3, kWidth, 6);
        std::vector<std::unique_ptr<ops::Weight>> weights;
        std::vector<ops::LinearOut> outs;
        for (const Both* to : {&q, &k, &v}) {
          const auto i = static_cast<unsigned>(outs.size());
          weights.push_back(backend->load_weight(make_weight(DType::f16, 1, kWidth, kCols, 20 + i).data));
          outs.push_back({weights.back().get(), to->device().data, biased ? bias.device_data() + i * kWidth : nullptr});
        }
        backend->linear(x.device(), outs);
        backend->segment_attention(q.device(), k.device(), v.device(), kHeads, segments, nullptr, nullptr, out.device());
        results[fuse].push_back(out.downloaded());
      }
      EXPECT_EQ(results[0], results[1]) << rows << " rows" << (biased ? ", biases" : "");
    }
  }
}

TEST_P(emulator_products, attention_of_segments_of_any_length_matches_the_reference) {
  const int heads = 1, hd = 8;
  for (const std::int32_t rows : {301, 1030}) {
    auto backend = open_emulated(GetParam());
    const std::vector<std::int32_t> segments{0, rows};
    Both q(*backend, rows, hd, 1, 4.0f), k(*backend, rows, hd, 2, 4.0f), v(*backend, rows, hd, 3), out(*backend, rows, hd, 4);
    backend->segment_attention(q.device(), k.device(), v.device(), heads, segments, nullptr, nullptr, out.device());
    ops::reference::segment_attention(q.host(), k.host(), v.host(), heads, segments, nullptr, nullptr, out.host());
    out.expect_equal(std::to_string(rows) + " rows");
  }
}

TEST_P(emulator_products, attention_of_segments_in_tiles_matches_the_reference) {
  for (const auto& [heads, hd] : {std::pair{2, 64}, {1, 72}, {3, 20}}) {
    for (const std::vector<std::int32_t>& segments : {std::vector<std::int32_t>{0, 1, 18, 18, 83, 214}, std::vector<std::int32_t>{0, 33}}) {
      auto backend = open_emulated(GetParam());
      const std::int64_t rows = segments.back();
      Both q(*backend, rows, heads * hd, 1, 2.0f), k(*backend, rows, heads * hd, 2, 2.0f), v(*backend, rows, heads * hd, 3), out(*backend, rows, heads * hd, 4);
      backend->segment_attention(q.device(), k.device(), v.device(), heads, segments, nullptr, nullptr, out.device());
      ops::reference::segment_attention(q.host(), k.host(), v.host(), heads, segments, nullptr, nullptr, out.host());
      out.expect_equal(std::to_string(hd) + " dims, " + std::to_string(rows) + " rows");
    }
  }
}

// More segments than a grid has blocks, all but one empty: products, which read q, k and v where they were to be.
TEST_P(emulator_products, attention_of_more_segments_than_blocks_takes_products_that_wait) {
  constexpr int kDim = 64, kCols = 32;
  auto backend = open_emulated(GetParam());
  std::vector<std::int32_t> segments(65600, 0);
  segments.push_back(17);
  Both x(*backend, 17, kCols, 1), q(*backend, 17, kDim, 2), k(*backend, 17, kDim, 3), v(*backend, 17, kDim, 4), out(*backend, 17, kDim, 5),
      bias(*backend, 1, kDim, 6);
  const MadeWeight made = make_weight(DType::f16, 1, kDim, kCols, 20);
  const auto weight = backend->load_weight(made.data);
  std::vector<ops::LinearOut> outs;
  for (Both* to : {&q, &k, &v}) {
    outs.push_back({weight.get(), to->device().data, bias.device_data()});
    ops::reference::linear(x.host(), made.floats.data(), bias.values().data(), to->host());
  }
  backend->linear(x.device(), outs);
  backend->segment_attention(q.device(), k.device(), v.device(), 1, segments, nullptr, nullptr, out.device());
  ops::reference::segment_attention(q.host(), k.host(), v.host(), 1, segments, nullptr, nullptr, out.host());
  out.expect_equal("one segment of 17 rows");
}

// Waiting products and biases are the kernel's to fetch, and that of the keys changes nothing.
TEST_P(emulator_products, attention_in_tiles_and_windows_takes_products_and_biases_that_wait) {
  constexpr int kHeads = 2, kCols = 32;
  for (const auto& [hd, segments] : {std::pair{64, std::vector<std::int32_t>{0, 40, 61}}, {72, {0, 37}}, {20, {0, 4, 8, 13}}}) {
    auto backend = open_emulated(GetParam());
    const std::int64_t rows = segments.back(), width = kHeads * hd;
    Both x(*backend, rows, kCols, 1), q(*backend, rows, width, 2), k(*backend, rows, width, 3), v(*backend, rows, width, 4), out(*backend, rows, width, 5),
        bias(*backend, 3, width, 6);
    std::vector<std::unique_ptr<ops::Weight>> weights;
    std::vector<ops::LinearOut> outs;
    for (Both* to : {&q, &k, &v}) {
      const auto i = static_cast<unsigned>(outs.size());
      const MadeWeight made = make_weight(DType::f16, 1, width, kCols, 20 + i);
      weights.push_back(backend->load_weight(made.data));
      outs.push_back({weights.back().get(), to->device().data, bias.device_data() + i * width});
      ops::reference::linear(x.host(), made.floats.data(), bias.values().data() + i * width, to->host());
    }
    backend->linear(x.device(), outs);
    backend->segment_attention(q.device(), k.device(), v.device(), kHeads, segments, nullptr, nullptr, out.device());
    ops::reference::segment_attention(q.host(), k.host(), v.host(), kHeads, segments, nullptr, nullptr, out.host());
    out.expect_equal(std::to_string(hd) + " dims");
  }
}

INSTANTIATE_TEST_SUITE_P(every_case, emulator_products, testing::ValuesIn(cuda_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(emulator_weights_kept, fp32_rows_are_kept_while_memory_is_plentiful_and_given_up) {
  constexpr std::uint64_t kMemory = std::uint64_t{96} << 20;
  constexpr std::int64_t kRows = 20, kCols = 64, kOut = 96;
  const MadeWeight made = make_weight(DType::q8_0, 1, kOut, kCols, 1);
  std::vector<float> results[2];
  for (const bool keep : {false, true}) {
    cuda::CudaBackendOptions options;
    options.weight_copies = keep;
    auto backend = open_emulated(cuda_cases().front(), options, cuda::GemmType::f32, kMemory);
    const auto weight = backend->load_weight(made.data);
    Both x(*backend, kRows, kCols, 2), out(*backend, kRows, kOut, 3);
    const ops::LinearOut to{weight.get(), out.device().data};
    backend->linear(x.device(), {&to, 1});
    results[keep] = out.downloaded();
    if (!keep) continue;
    const std::uint64_t launches = backend->device().launches();
    backend->linear(x.device(), {&to, 1});
    EXPECT_EQ(backend->device().launches(), launches + 1) << "nothing was unpacked";
    EXPECT_EQ(out.downloaded(), results[1]);
    const std::uint64_t used = backend->device().used_bytes(), free_bytes = backend->device().ceiling_bytes() - used;
    const ops::Buffer large = backend->make_buffer(free_bytes + 4096);
    EXPECT_EQ(backend->device().used_bytes(), used + large.bytes() - static_cast<std::uint64_t>(kOut * kCols * 4)) << "the kept rows made room";
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace heirloom::test
