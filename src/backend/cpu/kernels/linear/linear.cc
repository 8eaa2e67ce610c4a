#include "backend/cpu/kernels/linear/linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace heirloom::cpu {
namespace {

constexpr std::int64_t kLeastWork = 1 << 16;  // multiplications in a piece of a loop: claiming one costs about 100 ns

LinearKernels make_table(CpuTier tier) {
  LinearKernels table{};
  scalar::fill_linear_kernels(table);
  if (tier >= CpuTier::ssse3) ssse3::fill_linear_kernels(table);
  if (tier >= CpuTier::avx2) avx2::fill_linear_kernels(table);
  if (tier >= CpuTier::avx512) avx512::fill_linear_kernels(table);
  if (tier >= CpuTier::avx512_vnni) avx512_vnni::fill_linear_kernels(table);
  if (tier >= CpuTier::amx) amx::fill_linear_kernels(table);
  return table;
}

template <CpuTier tier>
const LinearKernels& table_of() {
  static const LinearKernels table = make_table(tier);
  return table;
}

const PackedWeight& packed(const ops::Weight& weight) { return static_cast<const PackedWeight&>(weight); }

}  // namespace

// A table is filled when its tier is first asked for: the functions that fill them are compiled for their tiers, so an old CPU
// must not enter those of the tiers above its own.
const LinearKernels& linear_kernels(CpuTier tier) {
  switch (tier) {
    case CpuTier::ssse3: return table_of<CpuTier::ssse3>();
    case CpuTier::avx2: return table_of<CpuTier::avx2>();
    case CpuTier::avx512: return table_of<CpuTier::avx512>();
    case CpuTier::avx512_vnni: return table_of<CpuTier::avx512_vnni>();
    case CpuTier::amx: return table_of<CpuTier::amx>();
    case CpuTier::scalar: break;
  }
  return table_of<CpuTier::scalar>();
}

void multiply_panels(const LinearKernels& kernels, const PackedWeight& weight, std::int64_t expert, std::int64_t first,
                     std::int64_t last, const ActTiles& x, const float* bias, float* out, std::int64_t out_stride) {
  // So many rows' records stay in a core's L2 while panels pass by.
  constexpr std::int64_t kRowsBytes = std::int64_t{512} << 10;
  const PanelKernel kernel = kernels.panel[static_cast<int>(weight.packed_type)];
  const std::int64_t chunk_tiles = std::max<std::int64_t>(1, kRowsBytes / (x.row_bytes * kMaxTileRows));
  for (std::int64_t chunk = 0; chunk < x.num_tiles(); chunk += chunk_tiles) {
    const std::int64_t chunk_end = std::min(chunk + chunk_tiles, x.num_tiles());
    for (std::int64_t p = first; p < last; ++p) {
      const std::byte* panel = weight.panel(expert, p);
      // What is read next, here or in the thread's next piece.
      const std::byte* next = p + 1 < weight.panels ? panel + weight.panel_bytes : panel;
      const int width = static_cast<int>(std::min<std::int64_t>(kPanelRows, weight.rows - p * kPanelRows));
      for (std::int64_t t = chunk; t < chunk_end; ++t) {
        const int rows = x.tile_rows(t);
        float* to = out + t * kMaxTileRows * out_stride + p * kPanelRows;
        if (width == kPanelRows) {
          kernel(panel, next, weight.cols, x.tile(t), x.step_bytes(t), rows, to, out_stride);
        } else {
          float padded[kMaxTileRows * kPanelRows];
          kernel(panel, next, weight.cols, x.tile(t), x.step_bytes(t), rows, padded, kPanelRows);
          for (int r = 0; r < rows; ++r) {
            std::memcpy(to + r * out_stride, padded + r * kPanelRows, static_cast<std::size_t>(width) * sizeof(float));
          }
        }
        if (bias != nullptr) {
          for (int r = 0; r < rows; ++r) {
            for (int j = 0; j < width; ++j) to[r * out_stride + j] += bias[p * kPanelRows + j];
          }
        }
      }
    }
  }
}

void linear(ThreadPool& pool, CpuTier tier, ops::Matrix x, std::span<const ops::LinearOut> outs) {
  static thread_local Scratch integer_scratch, float_scratch;
  const LinearKernels& kernels = linear_kernels(tier);
  bool any_integer = false, any_float = false;
  std::int64_t panels = 0;
  for (const auto& out : outs) {
    const PackedWeight& weight = packed(*out.weight);
    HEIRLOOM_DCHECK(weight.cols == x.cols && weight.experts == 1);
    (is_integer_type(weight.packed_type) ? any_integer : any_float) = true;
    panels += weight.panels;
  }
  if (x.rows == 0 || panels == 0) return;
  const ActTiles integers = any_integer ? quantize_tiles(pool, kernels, x, integer_scratch) : ActTiles{};
  const ActTiles floats = any_float ? float_tiles(pool, x, float_scratch) : ActTiles{};

  const std::int64_t grain = std::max<std::int64_t>(1, kLeastWork / (x.cols * kPanelRows * x.rows));
  pool.parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t base = 0;  // first panel of this output in the common numbering
    for (const auto& out : outs) {
      const PackedWeight& weight = packed(*out.weight);
      const std::int64_t first = std::max(begin, base) - base;
      const std::int64_t last = std::min(end, base + weight.panels) - base;
      if (first < last) {
        multiply_panels(kernels, weight, 0, first, last, is_integer_type(weight.packed_type) ? integers : floats, out.bias,
                        out.out, weight.rows);
      }
      base += weight.panels;
    }
  });
}

void embed_rows(ThreadPool& pool, const ops::Weight& table, const std::int32_t* ids, ops::Matrix out) {
  const PackedWeight& weight = packed(table);
  HEIRLOOM_DCHECK(weight.cols == out.cols);
  pool.parallel_for(out.rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) read_row(weight, 0, ids[r], out.data + r * out.cols);
  });
}

}  // namespace heirloom::cpu
