// Dense, row and vision ops through the GPU kernels on the emulator, against the scalar specification.
#include <gtest/gtest.h>

#include "cuda/cuda_cases.h"

namespace heirloom::test {
namespace {

class emulator_ops : public testing::TestWithParam<CudaCase> {};

TEST_P(emulator_ops, norms_match_the_reference) {
  auto backend = open_emulated(GetParam());
  for (const auto& [rows, cols] : {std::pair{1, 4}, {3, 96}, {2, 1028}}) {
    Both x(*backend, rows, cols, 1), delta(*backend, rows, cols, 2), weight(*backend, 1, cols, 3),
        bias(*backend, 1, cols, 4), out(*backend, rows, cols, 5);
    backend->rms_norm(x.device(), weight.device_data(), 1e-6f, out.device());
    ops::reference::rms_norm(x.host(), weight.values().data(), 1e-6f, out.host());
    out.expect_equal("rms_norm");
    backend->add_rms_norm(x.device(), delta.device(), weight.device_data(), 1e-6f, out.device());
    ops::reference::add_rms_norm(x.host(), delta.host(), weight.values().data(), 1e-6f, out.host());
    out.expect_equal("add_rms_norm");
    x.expect_equal("residual");
  }
}

// Lengths on both sides of what a block of 96 threads, then one of 384, holds in registers, and those that go one value at a time. The values
// lie far from zero beside their spread: a variance from sums of squares would be off.
TEST_P(emulator_ops, layer_norms_of_any_length_match_the_reference) {
  auto backend = open_emulated(GetParam());
  const std::pair<int, int> shapes[] = {{1, 4},    {65, 13},  {3, 380},  {8, 384},  {2, 1148}, {3, 1152}, {1, 1151},
                                        {2, 1156}, {3, 2049}, {1, 4604}, {2, 4608}, {1, 4612}, {2, 5001}};
  for (const auto& [rows, cols] : shapes) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << cols);
    Both x(*backend, rows, cols, 1), weight(*backend, 1, cols, 3), bias(*backend, 1, cols, 4), out(*backend, rows, cols, 5);
    for (float& value : x.values()) value += 20.0f;
    backend->upload(x.device().data, x.values().data(), x.values().size() * sizeof(float));
    backend->layer_norm(x.device(), weight.device_data(), bias.device_data(), 1e-6f, out.device());
    ops::reference::layer_norm(x.host(), weight.values().data(), bias.values().data(), 1e-6f, out.host());
    out.expect_equal("apart");
    backend->layer_norm(x.device(), weight.device_data(), bias.device_data(), 1e-6f, x.device());
    ops::reference::layer_norm(x.host(), weight.values().data(), bias.values().data(), 1e-6f, x.host());
    x.expect_equal("in place");
  }
}

TEST_P(emulator_ops, elementwise_maps_match_the_reference) {
  auto backend = open_emulated(GetParam());
  Both x(*backend, 5, 77, 1, 3.0f), y(*backend, 5, 77, 2, 3.0f), out(*backend, 5, 77, 3);
  backend->swiglu(x.device(), y.device(), out.device());
  ops::reference::swiglu(x.host(), y.host(), out.host());
  out.expect_equal("swiglu");
  for (const ops::Gelu kind : {ops::Gelu::tanh, ops::Gelu::erf}) {
    backend->gelu(out.device(), kind);
    ops::reference::gelu(out.host(), kind);
    out.expect_equal("gelu", 1e-6);
  }
  backend->add(x.device(), y.device());
  ops::reference::add(x.host(), y.host());
  x.expect_equal("add", 1e-7);
}

TEST_P(emulator_ops, bytes_become_the_values_of_their_channel) {
  auto backend = open_emulated(GetParam());
  constexpr std::int64_t kPlane = 50, kRows = 9;
  std::vector<std::uint8_t> bytes(kRows * 3 * kPlane);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
  Both table(*backend, 3, 256, 1), out(*backend, kRows, 3 * kPlane, 2);
  const ops::Buffer device_bytes = backend->make_buffer(bytes.size());
  backend->upload(device_bytes.data(), bytes.data(), bytes.size());
  backend->byte_values(static_cast<const std::uint8_t*>(device_bytes.data()), table.device_data(), kPlane, out.device());
  ops::reference::byte_values(bytes.data(), table.values().data(), kPlane, out.host());
  out.expect_equal("byte_values", 0);
}

TEST_P(emulator_ops, rows_move_by_index) {
  auto backend = open_emulated(GetParam());
  const std::vector<std::int32_t> picks{4, 0, 6, 6, 2}, places{3, 0, 8, 1, 5};
  const ops::Buffer device_picks = device_ints(*backend, picks),
                    device_places = device_ints(*backend, places);
  Both x(*backend, 7, 130, 1), gathered(*backend, 5, 130, 2), scattered(*backend, 9, 130, 3);
  backend->gather_rows(x.device(), device_picks.i32(), gathered.device());
  ops::reference::gather_rows(x.host(), picks.data(), gathered.host());
  gathered.expect_equal("gather_rows", 0);
  backend->scatter_rows(gathered.device(), device_places.i32(), scattered.device());
  ops::reference::scatter_rows(gathered.host(), places.data(), scattered.host());
  scattered.expect_equal("scatter_rows", 0);

  const std::vector<std::int32_t> four{0, 1, 2, 3, 6, 5, 4, 3, 1, 1, 1, 1};
  const ops::Buffer device_four = device_ints(*backend, four);
  Both weights(*backend, 3, 4, 4), out(*backend, 3, 130, 5);
  backend->add_weighted_rows(x.device(), device_four.i32(), weights.device_data(), 4, out.device());
  ops::reference::add_weighted_rows(x.host(), four.data(), weights.values().data(), 4, out.host());
  out.expect_equal("add_weighted_rows");
}

TEST_P(emulator_ops, argmax_takes_the_lowest_of_equals) {
  auto backend = open_emulated(GetParam());
  Both logits(*backend, 3, 20001, 1);
  logits.values()[7] = logits.values()[19000] = 50.0f;
  logits.values()[20001 + 20000] = 50.0f;
  backend->upload(logits.device().data, logits.values().data(), logits.values().size() * 4);
  std::vector<std::int32_t> got(3, -1), want(3);
  const ops::Buffer ids = device_ints(*backend, got);
  backend->argmax(logits.device(), ids.i32());
  backend->download(got.data(), ids.data(), 12);
  ops::reference::argmax(logits.host(), want.data());
  EXPECT_EQ(got, want);
  EXPECT_EQ(got[0], 7);
}

TEST_P(emulator_ops, segment_attention_matches_the_reference) {
  auto backend = open_emulated(GetParam());
  const std::vector<std::int32_t> segments{0, 13, 14, 80};
  const int heads = 2, hd = 18, rows = 80;
  Both q(*backend, rows, heads * hd, 1), k(*backend, rows, heads * hd, 2), v(*backend, rows, heads * hd, 3),
      out(*backend, rows, heads * hd, 4);
  backend->segment_attention(q.device(), k.device(), v.device(), heads, segments, nullptr, nullptr,
                             out.device());
  ops::reference::segment_attention(q.host(), k.host(), v.host(), heads, segments, nullptr, nullptr,
                                    out.host());
  out.expect_equal("without rope");
  Both cosine(*backend, rows, hd / 2, 5), sine(*backend, rows, hd / 2, 6);
  backend->segment_attention(q.device(), k.device(), v.device(), heads, segments, cosine.device_data(),
                             sine.device_data(), out.device());
  ops::reference::segment_attention(q.host(), k.host(), v.host(), heads, segments, cosine.values().data(),
                                    sine.values().data(), out.host());
  out.expect_equal("with rope");
}

TEST_P(emulator_ops, attention_in_small_windows_matches_the_reference) {
  auto backend = open_emulated(GetParam());
  const std::vector<std::int32_t> segments{0, 4, 8, 9, 25};
  const int heads = 2, hd = 18, rows = 25;
  Both q(*backend, rows, heads * hd, 1), k(*backend, rows, heads * hd, 2), v(*backend, rows, heads * hd, 3),
      out(*backend, rows, heads * hd, 4);
  backend->segment_attention(q.device(), k.device(), v.device(), heads, segments, nullptr, nullptr,
                             out.device());
  ops::reference::segment_attention(q.host(), k.host(), v.host(), heads, segments, nullptr, nullptr,
                                    out.host());
  out.expect_equal("windows");
}

INSTANTIATE_TEST_SUITE_P(every_case, emulator_ops, testing::ValuesIn(cuda_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- weights, by type ----

class emulator_weights : public testing::TestWithParam<DType> {
 protected:
  static std::int64_t block_cols() { return dtype_info(GetParam()).block_size == 256 ? 256 : 32; }
};

TEST_P(emulator_weights, embed_gives_the_file_values) {
  auto backend = open_emulated();
  const MadeWeight made = make_weight(GetParam(), 1, 9, 2 * block_cols(), 1);
  const auto weight = backend->load_weight(made.data);
  const std::vector<std::int32_t> ids{8, 0, 3, 3};
  const ops::Buffer device_ids = device_ints(*backend, ids);
  Both out(*backend, 4, made.data.cols, 2);
  backend->embed(*weight, device_ids.i32(), out.device());
  for (std::size_t r = 0; r < ids.size(); ++r) {
    std::copy_n(made.floats.begin() + ids[r] * made.data.cols, made.data.cols,
                out.values().begin() + static_cast<std::int64_t>(r) * made.data.cols);
  }
  out.expect_equal("embed", 1e-7);  // one rounding: K-quants multiply their scales first
}

TEST_P(emulator_weights, linear_matches_the_reference_for_any_number_of_rows) {
  for (const CudaCase& c : cuda_cases()) {
    auto backend = open_emulated(c);
    const std::int64_t cols = 3 * block_cols();
    const MadeWeight made = make_weight(GetParam(), 1, 13, cols, 1),
                     second = make_weight(GetParam(), 1, 6, cols, 2);
    const auto weight = backend->load_weight(made.data), other = backend->load_weight(second.data);
    for (const std::int64_t rows : {1, 2, 5, 8, 9, 67}) {
      Both x(*backend, rows, cols, 3), out(*backend, rows, 13, 4), more(*backend, rows, 6, 5),
          bias(*backend, 1, 13, 6);
      const ops::LinearOut outs[] = {{weight.get(), out.device().data, bias.device_data()},
                                     {other.get(), more.device().data}};
      backend->linear(x.device(), outs);
      if (rows <= 8 && takes_8_bit_x(*backend, *weight)) x.values() = as_8_bit(x.values());
      ops::reference::linear(x.host(), made.floats.data(), bias.values().data(), out.host());
      ops::reference::linear(x.host(), second.floats.data(), nullptr, more.host());
      const std::string what = std::string(c.name) + ", " + std::to_string(rows) + " rows";
      out.expect_equal(what);
      more.expect_equal(what + ", second weight");
    }
  }
}

// One row lies in shared memory, swizzled in pieces of 32 floats: the last piece may be part of one.
TEST_P(emulator_ops, products_of_one_row_of_any_length_match_the_reference) {
  auto backend = open_emulated(GetParam());
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const int cols : {8, 72, 144, 600}) {
      const MadeWeight made = make_weight(type, 1, 5, cols, 1);
      const auto weight = backend->load_weight(made.data);
      Both x(*backend, 1, cols, 2), out(*backend, 1, 5, 3);
      const ops::LinearOut to{weight.get(), out.device().data};
      backend->linear(x.device(), {&to, 1});
      ops::reference::linear(x.host(), made.floats.data(), nullptr, out.host());
      out.expect_equal(std::to_string(cols) + " columns");
    }
  }
}

TEST_P(emulator_weights, a_row_does_not_depend_on_the_rows_beside_it) {
  for (const CudaCase& c : cuda_cases()) {
    auto backend = open_emulated(c);
    const std::int64_t cols = 2 * block_cols();
    const MadeWeight made = make_weight(GetParam(), 1, 11, cols, 1);
    const auto weight = backend->load_weight(made.data);
    Both x(*backend, 7, cols, 2), all(*backend, 7, 11, 3), one(*backend, 1, 11, 4);
    const ops::LinearOut together{weight.get(), all.device().data};
    backend->linear(x.device(), {&together, 1});
    const std::vector<float> expected = all.downloaded();
    for (std::int64_t r = 0; r < 7; ++r) {
      const ops::LinearOut alone{weight.get(), one.device().data};
      backend->linear({x.device().data + r * cols, 1, cols}, {&alone, 1});
      const std::vector<float> got = one.downloaded();
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + r * 11)) << c.name << ", row " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(every_type, emulator_weights, testing::ValuesIn(weight_types()),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// What a decode step fuses: norm -> projections -> SwiGLU -> projection -> residual add and norm.
TEST(emulator_fusion, changes_no_result_and_writes_every_output) {
  const std::int64_t hidden = 64, inner = 96;
  const MadeWeight gate = make_weight(DType::q8_0, 1, inner, hidden, 1),
                   up = make_weight(DType::q8_0, 1, inner, hidden, 2),
                   down = make_weight(DType::q4_0, 1, hidden, inner, 3);
  std::vector<std::vector<float>> results[2];
  std::uint64_t launches[2];
  for (const bool fuse : {true, false}) {
    CudaCase c = cuda_cases().front();
    c.fuse = fuse;
    auto backend = open_emulated(c);
    const auto g = backend->load_weight(gate.data), u = backend->load_weight(up.data),
               d = backend->load_weight(down.data);
    Both residual(*backend, 1, hidden, 4), weight(*backend, 1, hidden, 5), normed(*backend, 1, hidden, 6),
        gated(*backend, 1, inner, 7), upped(*backend, 1, inner, 8), product(*backend, 1, inner, 9),
        delta(*backend, 1, hidden, 10), last(*backend, 1, hidden, 11), copy(*backend, 1, hidden, 12);
    const ops::Buffer zero_id = device_ints(*backend, {0});
    const std::uint64_t before = backend->device().launches();
    backend->rms_norm(residual.device(), weight.device_data(), 1e-6f, normed.device());
    const ops::LinearOut projections[] = {{g.get(), gated.device().data}, {u.get(), upped.device().data}};
    backend->linear(normed.device(), projections);
    backend->swiglu(gated.device(), upped.device(), product.device());
    const ops::LinearOut projection{d.get(), delta.device().data};
    backend->linear(product.device(), {&projection, 1});
    backend->add_rms_norm(residual.device(), delta.device(), weight.device_data(), 1e-6f, last.device());
    backend->gather_rows(last.device(), zero_id.i32(), copy.device());
    backend->synchronize();
    launches[fuse] = backend->device().launches() - before;
    for (Both* out : {&residual, &normed, &gated, &upped, &product, &delta, &last, &copy}) {
      results[fuse].push_back(out->downloaded());
    }
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_LT(launches[1], launches[0]);
}

}  // namespace
}  // namespace heirloom::test
