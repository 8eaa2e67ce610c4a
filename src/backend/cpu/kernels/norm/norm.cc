#include "backend/cpu/kernels/norm/norm.h"

#include "backend/cpu/kernels/tier_table.h"

namespace heirloom::cpu {

const NormKernels& norm_kernels(CpuTier tier) {
  static constexpr NormKernels kTables[4] = {
      {scalar::rms_norm, scalar::add_rms_norm, scalar::layer_norm},
      {ssse3::rms_norm, ssse3::add_rms_norm, ssse3::layer_norm},
      {avx2::rms_norm, avx2::add_rms_norm, avx2::layer_norm},
      {avx512::rms_norm, avx512::add_rms_norm, avx512::layer_norm},
  };
  return tier_table(kTables, tier);
}

void rms_norm(ThreadPool& pool, CpuTier tier, ops::Matrix x, const float* weight, float eps, ops::Matrix out) {
  const auto kernel = norm_kernels(tier).rms_norm;
  pool.parallel_for(x.rows, rows_grain(x.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) kernel(x.data + r * x.cols, weight, eps, x.cols, out.data + r * x.cols);
  });
}

void add_rms_norm(ThreadPool& pool, CpuTier tier, ops::Matrix residual, ops::Matrix delta, const float* weight, float eps,
                  ops::Matrix out) {
  const auto kernel = norm_kernels(tier).add_rms_norm;
  const std::int64_t n = residual.cols;
  pool.parallel_for(residual.rows, rows_grain(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) kernel(residual.data + r * n, delta.data + r * n, weight, eps, n, out.data + r * n);
  });
}

void layer_norm(ThreadPool& pool, CpuTier tier, ops::Matrix x, const float* weight, const float* bias, float eps,
                ops::Matrix out) {
  const auto kernel = norm_kernels(tier).layer_norm;
  pool.parallel_for(x.rows, rows_grain(x.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      kernel(x.data + r * x.cols, weight, bias, eps, x.cols, out.data + r * x.cols);
    }
  });
}

}  // namespace heirloom::cpu
