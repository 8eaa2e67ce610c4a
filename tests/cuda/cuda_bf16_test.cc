// BF16 products of prompts: the rows and inputs that are kept from one use to the next give the bits of a fresh conversion, and kept
// rows never stand in the way of other memory.
#include <gtest/gtest.h>

#include <functional>

#include "cuda/cuda_cases.h"
#include "heirloom/error.h"

namespace heirloom::test {
namespace {

constexpr std::int64_t kRows = 20, kHidden = 64, kInner = 96;

std::vector<float> product(cuda::CudaBackend& backend, const ops::Weight& weight, ops::Matrix x) {
  Both out(backend, x.rows, weight.rows, 90);
  const ops::LinearOut to{&weight, out.device().data};
  backend.linear(x, {&to, 1});
  return out.downloaded();
}

TEST(emulator_bf16, rows_of_weights_are_kept_and_given_up_for_other_memory) {
  constexpr std::uint64_t kMemory = std::uint64_t{96} << 20;
  const MadeWeight made = make_weight(DType::q8_0, 1, kInner, kHidden, 1);
  std::vector<float> results[2];
  for (const bool keep : {false, true}) {
    cuda::CudaBackendOptions options;
    options.weight_copies = keep;
    auto backend = open_emulated(cuda_cases()[3], options, cuda::GemmType::bf16, kMemory);
    const auto weight = backend->load_weight(made.data);
    Both x(*backend, kRows, kHidden, 2);
    const auto used = [&] { return backend->device().used_bytes(); };
    results[keep] = product(*backend, *weight, x.device());
    if (!keep) continue;
    EXPECT_EQ(product(*backend, *weight, x.device()), results[1]) << "from the kept rows";
    const std::uint64_t before = used(), free_bytes = backend->device().ceiling_bytes() - before;
    const ops::Buffer large = backend->make_buffer(free_bytes + 4096);
    EXPECT_EQ(used(), before + large.bytes() - static_cast<std::uint64_t>(kInner * kHidden * 2)) << "the kept rows made room";
    EXPECT_THROW(backend->make_buffer(free_bytes), Error);
  }
  EXPECT_EQ(results[0], results[1]);
  // After the rows were given up, weights are unpacked at each use again.
  auto backend = open_emulated(cuda_cases()[3], {}, cuda::GemmType::bf16, kMemory * 2);
  const auto weight = backend->load_weight(made.data);
  Both x(*backend, kRows, kHidden, 2);
  EXPECT_EQ(product(*backend, *weight, x.device()), results[0]);
  {
    const ops::Buffer large = backend->make_buffer(kMemory / 4);
    EXPECT_THROW(backend->make_buffer(kMemory * 2), Error);
  }
  const std::uint64_t before = backend->device().used_bytes();
  EXPECT_EQ(product(*backend, *weight, x.device()), results[0]);
  EXPECT_LE(before, backend->device().used_bytes());
}

TEST(emulator_bf16, inputs_that_a_kernel_left_are_those_of_a_conversion) {
  auto backend = open_emulated(cuda_cases()[3], {}, cuda::GemmType::bf16);
  const MadeWeight made = make_weight(DType::q8_0, 1, kInner, kHidden, 1), wide = make_weight(DType::q8_0, 1, kHidden, kInner, 2);
  const auto weight = backend->load_weight(made.data), down = backend->load_weight(wide.data);
  Both residual(*backend, kRows, kHidden, 3), delta(*backend, kRows, kHidden, 4), norm(*backend, 1, kHidden, 5),
      normed(*backend, kRows, kHidden, 6), gate(*backend, kRows, kInner, 7), up(*backend, kRows, kInner, 8);
  // The same floats at another address have no bf16 form yet.
  const auto converted = [&](const ops::Weight& w, const Both& x) {
    const std::vector<float> values = x.downloaded();
    const ops::Buffer copy = backend->make_buffer(std::span<const float>(values));
    return product(*backend, w, {copy.f32(), x.device().rows, x.device().cols});
  };
  backend->rms_norm(residual.device(), norm.device_data(), 1e-6f, normed.device());
  EXPECT_EQ(product(*backend, *weight, normed.device()), converted(*weight, normed)) << "rms_norm";
  backend->add_rms_norm(residual.device(), delta.device(), norm.device_data(), 1e-6f, normed.device());
  EXPECT_EQ(product(*backend, *weight, normed.device()), converted(*weight, normed)) << "add_rms_norm";
  backend->swiglu(gate.device(), up.device(), gate.device());
  EXPECT_EQ(product(*backend, *down, gate.device()), converted(*down, gate)) << "swiglu";
  // What another op writes over a matrix must not be hidden by the form left before.
  backend->rms_norm(residual.device(), norm.device_data(), 1e-6f, normed.device());
  backend->add(normed.device(), delta.device());
  EXPECT_EQ(product(*backend, *weight, normed.device()), converted(*weight, normed)) << "add after rms_norm";
}

// Products with biases wait, and one matrix at a time has a bf16 form: that of what waits neither hides another's nor is made twice.
TEST(emulator_bf16, products_that_wait_have_the_inputs_they_were_given) {
  auto backend = open_emulated(cuda_cases()[3], {}, cuda::GemmType::bf16);
  const MadeWeight made = make_weight(DType::q8_0, 1, kInner, kHidden, 1);
  const auto weight = backend->load_weight(made.data);
  Both x(*backend, kRows, kHidden, 2), other(*backend, kRows, kHidden, 3), scale(*backend, 1, kHidden, 4), shift(*backend, 1, kHidden, 5),
      normed(*backend, kRows, kHidden, 6), bias(*backend, 1, kInner, 7);
  const auto norm = [&] { backend->layer_norm(x.device(), scale.device_data(), shift.device_data(), 1e-6f, normed.device()); };
  const auto wait = [&](const Both& inputs, const Both& one, const Both& two) {
    const ops::LinearOut outs[] = {{weight.get(), one.device().data, bias.device_data()}, {weight.get(), two.device().data, bias.device_data()}};
    backend->linear(inputs.device(), outs);
  };
  Both of_other(*backend, kRows, kInner, 8), of_normed(*backend, kRows, kInner, 9), unread(*backend, kRows, kInner, 10),
      again(*backend, kRows, kInner, 11);
  norm();
  wait(other, of_other, unread);
  const std::vector<float> alone = product(*backend, *weight, normed.device());
  wait(other, again, unread);
  EXPECT_EQ(again.downloaded(), of_other.downloaded());
  backend->synchronize();  // no matrix has a bf16 form now
  EXPECT_EQ(product(*backend, *weight, normed.device()), alone);

  const auto launches = [&](const std::function<void()>& run) {
    backend->synchronize();
    const std::uint64_t before = backend->device().launches();
    run();
    backend->synchronize();
    return backend->device().launches() - before;
  };
  const std::uint64_t apart = launches(norm) + launches([&] { wait(normed, of_normed, unread); });
  EXPECT_EQ(launches([&] { norm(), wait(normed, of_normed, unread); }), apart - 1) << "converted although the norm left bf16";
}

}  // namespace
}  // namespace heirloom::test
