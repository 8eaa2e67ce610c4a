// The device layer without a card: what is said about devices, memory under a ceiling, launch limits, recording.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>

#include "base/check.h"
#include "cuda/cuda_cases.h"

namespace heirloom::test {
namespace {

// A driver with two cards, the second too old; `init` is what cuInit answers.
struct FakeDriver {
  static inline int init = 0;
  static inline int total_mem = 0;
};

cuda::CudaApi fake_api() {
  cuda::CudaApi api;
  api.cuDriverGetVersion = [](int* version) { return *version = 9010, 0; };
  api.cuInit = [](unsigned) { return FakeDriver::init; };
  api.cuDeviceGetCount = [](int* count) { return *count = 2, 0; };
  api.cuDeviceGet = [](cuda::CUdevice* device, int index) { return *device = index, 0; };
  api.cuDeviceGetName = [](char* name, int, cuda::CUdevice device) {
    std::strcpy(name, device == 0 ? "Tesla C2075" : "Tesla C1060");
    return 0;
  };
  api.cuDeviceGetAttribute = [](int* value, int which, cuda::CUdevice device) {
    *value = which == cuda::kAttributeComputeMajor ? (device == 0 ? 2 : 1) : 0;
    return 0;
  };
  api.cuDeviceTotalMem = [](std::size_t* bytes, cuda::CUdevice) { return *bytes = std::size_t{5} << 30, FakeDriver::total_mem; };
  return api;
}

TEST(cuda_devices, are_listed_one_line_each_with_the_reason) {
  FakeDriver::init = FakeDriver::total_mem = 0;
  const auto reports = cuda::list_devices(fake_api());
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_TRUE(reports[0].usable);
  EXPECT_NE(reports[0].line.find("Tesla C2075"), std::string::npos);
  EXPECT_FALSE(reports[1].usable);
  EXPECT_NE(reports[1].line.find("2.0 (Fermi, 2010) or newer"), std::string::npos);
}

TEST(cuda_devices, say_why_there_is_none) {
  FakeDriver::total_mem = 0;
  FakeDriver::init = cuda::kCudaErrorNoDevice;
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_NE(cuda::list_devices(fake_api()).front().line.find("CUDA_VISIBLE_DEVICES"), std::string::npos);
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_NE(cuda::list_devices(fake_api()).front().line.find("reports no device"), std::string::npos);
  FakeDriver::init = 803;  // system driver mismatch
  EXPECT_NE(cuda::list_devices(fake_api()).front().line.find("CUDA error 803"), std::string::npos);
  FakeDriver::init = 0;
  FakeDriver::total_mem = 801;
  EXPECT_NE(cuda::list_devices(fake_api()).front().line.find("MIG"), std::string::npos);
  FakeDriver::total_mem = 0;
}

TEST(cuda_device, refuses_memory_past_its_ceiling_with_the_numbers) {
  cuda::DeviceOptions options;
  options.vram_bytes = 1 << 20;
  const auto device = emulator::open(options);
  void* first = device->alloc(600 << 10, "a test");
  EXPECT_EQ(device->try_alloc(600 << 10), nullptr);
  try {
    device->alloc(600 << 10, "a test");
    FAIL() << "it fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("0.6 MiB"), std::string::npos) << error.what();
  }
  device->free(first);
  EXPECT_EQ(device->used_bytes(), 0u);
  EXPECT_EQ(device->peak_bytes(), std::uint64_t{600 << 10});
}

TEST(cuda_device, checks_launches_against_compute_capability_2_0) {
  EXPECT_NO_THROW(cuda::check_fermi_limits("k", {65535, 65535, 65535}, {1024}, 48 * 1024));
  EXPECT_THROW(cuda::check_fermi_limits("k", {65536}, {32}, 0), Error);
  EXPECT_THROW(cuda::check_fermi_limits("k", {1}, {1024, 2}, 0), Error);
  EXPECT_THROW(cuda::check_fermi_limits("k", {1}, {32}, 48 * 1024 + 1), Error);
  EXPECT_THROW(cuda::check_fermi_limits("k", {0}, {32}, 0), Error);
}

TEST(cuda_device, knows_its_tiers) {
  EXPECT_EQ(cuda::parse_arch(""), 0);
  EXPECT_EQ(cuda::parse_arch("sm20"), 20);
  EXPECT_THROW(cuda::parse_arch("sm42"), Error);
  const auto floor = open_emulated(cuda_cases().front()), newer = open_emulated(cuda_cases()[3]);
  EXPECT_EQ(floor->device().tier_of("gemv_q8_0_1"), 20);
  EXPECT_EQ(newer->device().tier_of("gemv_q8_0_1"), 90);
  EXPECT_EQ(newer->device().tier_of("no_such_kernel"), 0);
}

// The emulator copies from page-locked memory as late as events and later work allow. Sizes lie around what goes in one piece (256 KiB), the
// chunks (512 KiB) and the number of chunks (3); the source is overwritten as soon as the call returns, and the next upload follows at once.
TEST(cuda_device, uploads_of_any_size_may_be_followed_by_anything) {
  for (const CudaCase& c : cuda_cases()) {
    if (!c.hardware && c.arch != std::string("sm20")) continue;
    auto backend = open_emulated(c);
    std::vector<std::vector<std::uint8_t>> wanted;
    std::vector<ops::Buffer> buffers;
    std::mt19937 engine(1);
    constexpr std::size_t kKiB = 1024, kChunk = 512 * kKiB;
    for (const std::size_t bytes : {std::size_t{1}, 256 * kKiB - 1, 256 * kKiB, kChunk - 1, kChunk, kChunk + 1, 3 * kChunk, 3 * kChunk + 1,
                                    7 * kChunk + 12345, std::size_t{5}, 4 * kChunk - 1}) {
      std::vector<std::uint8_t>& source = wanted.emplace_back(bytes);
      for (std::uint8_t& value : source) value = static_cast<std::uint8_t>(engine());
      std::vector<std::uint8_t> given = source;
      buffers.push_back(backend->make_buffer(bytes));
      backend->upload(buffers.back().data(), given.data(), bytes);
      given.assign(bytes, 0);
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      std::vector<std::uint8_t> got(wanted[i].size());
      backend->download(got.data(), buffers[i].data(), got.size());
      EXPECT_TRUE(got == wanted[i]) << c.name << ": " << got.size() << " bytes";
    }
    // Memory and backend may go while the last upload is on its way.
    std::vector<std::uint8_t> last(kChunk);
    backend->upload(buffers.back().data(), last.data(), last.size());
    buffers.clear();
  }
}

/// Steps of one product that are run, recorded, then replayed; step `abandoned` ends with an error. Returns how many were issued.
int run_steps(unsigned steps, std::optional<unsigned> abandoned) {
  auto backend = open_emulated();
  const MadeWeight made = make_weight(DType::q8_0, 1, 32, 64, 1);
  const auto weight = backend->load_weight(made.data);
  Both x(*backend, 1, 64, 2), out(*backend, 1, 32, 3);
  ops::StepPlan plan;
  plan.num_rows = 1;
  plan.sequences.push_back({0, 1, 0, nullptr, nullptr, {}, {}});
  int issued = 0;
  for (unsigned step = 0; step < steps; ++step) {
    x.values() = random_floats(64, 10 + step);
    backend->upload(x.device().data, x.values().data(), 256);
    if (!backend->begin_step(plan, 7)) {
      const ops::LinearOut projection{weight.get(), out.device().data};
      backend->linear(x.device(), {&projection, 1});
      ++issued;
    }
    if (step == abandoned) {
      backend->abandon_step();
      continue;
    }
    backend->end_step();
    ops::reference::linear(x.host(), made.floats.data(), nullptr, out.host());
    out.expect_equal("step " + std::to_string(step));
  }
  return issued;
}

TEST(cuda_step, a_recorded_step_gives_what_its_calls_would) {
  EXPECT_EQ(run_steps(4, std::nullopt), 2);  // once as it is, once recorded, then replayed
}

TEST(cuda_step, an_error_while_it_is_recorded_spoils_nothing) {
  EXPECT_EQ(run_steps(5, 1), 3);  // recorded again by the step after it
}

}  // namespace
}  // namespace heirloom::test
