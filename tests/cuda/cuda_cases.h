// What the GPU tests share: a backend over the emulator in each configuration that must not change results, device copies of
// host data, and comparison with the scalar specification of the op.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda_emulator/emulator.h"
#include "kernels/weight_maker.h"
#include "ops/reference.h"

namespace heirloom::test {

struct CudaCase {
  const char* name;
  const char* arch;
  emulator::Order order;
  bool fuse;
  bool hardware = false;
};

/// sm20 in both thread orders, with and without fusion, and the shuffle path of newer tiers; where a GPU is, the same on it.
inline const std::vector<CudaCase>& cuda_cases() {
  static const std::vector<CudaCase> cases = [] {
    std::vector<CudaCase> all{{"sm20", "sm20", emulator::Order::ascending, true},
                              {"sm20_descending", "sm20", emulator::Order::descending, true},
                              {"sm20_unfused", "sm20", emulator::Order::ascending, false},
                              {"sm90", "sm90", emulator::Order::ascending, true}};
    if (cuda::list_devices().front().usable) {
      all.push_back({"gpu_sm20", "sm20", emulator::Order::ascending, true, true});
      all.push_back({"gpu_best", "", emulator::Order::ascending, true, true});
    }
    return all;
  }();
  return cases;
}

inline std::unique_ptr<cuda::CudaBackend> open_emulated(const CudaCase& c, cuda::CudaBackendOptions options = {},
                                                        cuda::GemmType gemm = cuda::GemmType::f32, std::uint64_t vram_bytes = 0) {
  cuda::DeviceOptions device;
  device.arch = c.arch;
  device.vram_bytes = vram_bytes;
  options.fuse = c.fuse;
  options.gemm = gemm;
  if (c.hardware) return std::make_unique<cuda::CudaBackend>(cuda::open_device(device), options);
  return std::make_unique<cuda::CudaBackend>(emulator::open(device, c.order), options);
}

inline std::unique_ptr<cuda::CudaBackend> open_emulated() { return open_emulated(cuda_cases().front()); }

/// A host matrix, its device copy, and the way back.
class Both {
 public:
  Both(ops::Backend& backend, std::int64_t rows, std::int64_t cols, unsigned seed, float spread = 1.0f)
      : backend_(backend), rows_(rows), cols_(cols), host_(random_floats(static_cast<std::size_t>(rows * cols), seed, spread)) {
    buffer_ = backend.make_buffer(std::span<const float>(host_));
  }
  ops::Matrix host() { return {host_.data(), rows_, cols_}; }
  ops::Matrix device() const { return {buffer_.f32(), rows_, cols_}; }
  std::vector<float>& values() { return host_; }
  const float* device_data() const { return buffer_.f32(); }
  std::vector<float> downloaded() const {
    std::vector<float> out(host_.size());
    backend_.download(out.data(), buffer_.data(), out.size() * sizeof(float));
    return out;
  }
  /// Compares the device's values with the host's.
  void expect_equal(const std::string& what, double tolerance = 2e-5) {
    const std::vector<float> got = downloaded();
    double largest = 1e-3, worst = 0;
    std::size_t where = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(host_[i])));
      const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(host_[i]));
      if (!(error <= worst)) {
        worst = error;
        where = i;
      }
    }
    EXPECT_TRUE(worst <= tolerance * largest) << what << ": element " << where << " of " << got.size() << " is " << got[where]
                                              << " instead of " << host_[where];
  }

 private:
  ops::Backend& backend_;
  std::int64_t rows_, cols_;
  std::vector<float> host_;
  ops::Buffer buffer_;
};

/// True where products of `weight` with up to 8 rows take x in 8 bits (as_8_bit): quantised weights from sm80 on.
inline bool takes_8_bit_x(const cuda::CudaBackend& backend, const ops::Weight& weight) {
  const std::string format = static_cast<const cuda::CudaWeight&>(weight).format;
  return format != "f32" && format != "f16" && format != "bf16" && backend.device().tier_of("gemv_" + format + "_1") >= 80;
}

inline ops::Buffer device_ints(ops::Backend& backend, const std::vector<std::int32_t>& values) {
  ops::Buffer buffer = backend.make_buffer(values.size() * 4);
  backend.upload(buffer.data(), values.data(), values.size() * 4);
  return buffer;
}

}  // namespace heirloom::test
