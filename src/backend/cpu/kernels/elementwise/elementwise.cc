#include "backend/cpu/kernels/elementwise/elementwise.h"

#include "backend/cpu/kernels/tier_table.h"

namespace heirloom::cpu {
namespace {

// Elements in a piece of a parallel loop. Pieces of plain additions are bound by memory, those with an exponential by
// arithmetic: 16 Ki and 4 Ki elements are both about 3 us. Multiples of every vector length.
constexpr std::int64_t kAddGrain = 16384;
constexpr std::int64_t kExpGrain = 4096;

}  // namespace

const ElementwiseKernels& elementwise_kernels(CpuTier tier) {
#define HEIRLOOM_TABLE(isa) \
  { isa::add_rows, isa::swiglu_rows, isa::gelu_tanh_rows, isa::gelu_erf_rows, isa::add_scaled_row }
  static constexpr ElementwiseKernels kTables[4] = {HEIRLOOM_TABLE(scalar), HEIRLOOM_TABLE(ssse3), HEIRLOOM_TABLE(avx2),
                                                    HEIRLOOM_TABLE(avx512)};
#undef HEIRLOOM_TABLE
  return tier_table(kTables, tier);
}

void add(ThreadPool& pool, CpuTier tier, ops::Matrix x, ops::Matrix y) {
  const auto kernel = elementwise_kernels(tier).add;
  pool.parallel_for(x.rows * x.cols, kAddGrain,
                    [&](std::int64_t begin, std::int64_t end) { kernel(x.data + begin, y.data + begin, end - begin); });
}

void swiglu(ThreadPool& pool, CpuTier tier, ops::Matrix gate, ops::Matrix up, ops::Matrix out) {
  const auto kernel = elementwise_kernels(tier).swiglu;
  pool.parallel_for(gate.rows * gate.cols, kExpGrain, [&](std::int64_t begin, std::int64_t end) {
    kernel(gate.data + begin, up.data + begin, out.data + begin, end - begin);
  });
}

void gelu(ThreadPool& pool, CpuTier tier, ops::Matrix x, ops::Gelu kind) {
  const ElementwiseKernels& kernels = elementwise_kernels(tier);
  const auto kernel = kind == ops::Gelu::tanh ? kernels.gelu_tanh : kernels.gelu_erf;
  pool.parallel_for(x.rows * x.cols, kExpGrain,
                    [&](std::int64_t begin, std::int64_t end) { kernel(x.data + begin, end - begin); });
}

void add_weighted_rows(ThreadPool& pool, CpuTier tier, ops::Matrix table, const std::int32_t* rows, const float* weights,
                       int per_row, ops::Matrix out) {
  const auto kernel = elementwise_kernels(tier).add_scaled;
  pool.parallel_for(out.rows, rows_grain(out.cols * per_row), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t j = r * per_row; j < (r + 1) * per_row; ++j) {
        kernel(table.data + rows[j] * table.cols, weights[j], out.data + r * out.cols, out.cols);
      }
    }
  });
}

}  // namespace heirloom::cpu
