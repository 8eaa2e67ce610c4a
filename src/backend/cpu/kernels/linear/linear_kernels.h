// The table of kernels of one ISA tier for products with packed weights, and the rule they all keep. ISA files include
// this header: it holds plain declarations only.
//
// The rule: an output is a sum over k in ascending blocks, with the same operations whatever the number of rows, so that
// decode, batches and prefill agree bit for bit on a tier. For integer types a block's dot product is exact, and the block
// adds acc = acc + (w_scale * x_scale) * dot (fused where the tier has FMA); types with a min then add min * scaled_sum
// (q8_x) or -(dmin m) * scaled_sum (q4_k, q5_k). The tiers scalar and ssse3 sum a super-block of a K-quant before d and dmin
// multiply it (super_blocks_ssse3.h). For float types it is acc = acc + x * w for ascending k.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/weight/packed_layout.h"

namespace heirloom::cpu {

/// Most rows that one call of a panel kernel takes: a tile.
inline constexpr int kMaxTileRows = 32;

/// out[r * out_stride + j] = dot(row r of the tile, row j of the panel), for `rows` rows (1 .. kMaxTileRows) of 16 outputs.
///   panel   one packed panel of k columns
///   next    the memory that the caller reads after this panel, for prefetching only; anything is safe, `panel` means none
///   x       the tile: for integer types ActBlock[k / 32][.], for float types float[k][.]; row r's entry follows row r - 1's
///   x_step  bytes from one block (integer types) or one k (float types) to the next
///   out     all 16 floats of each row are written; no alignment
using PanelKernel = void (*)(const std::byte* panel, const std::byte* next, std::int64_t k, const void* x, std::ptrdiff_t x_step, int rows,
                             float* out, std::ptrdiff_t out_stride);

struct LinearKernels {
  /// Quantises k (a multiple of 32) floats; record b is written at out + b * step records.
  void (*quantize_row)(const float* x, std::int64_t k, ActBlock* out, std::ptrdiff_t step);
  PanelKernel panel[kNumPackedTypes];
};

/// True for the types that multiply 8-bit activations (ActBlock), false for those that multiply floats.
constexpr bool is_integer_type(PackedType type) { return static_cast<int>(type) < static_cast<int>(PackedType::f32); }

// What each tier has of its own; a table is filled from the lowest tier upwards.
namespace scalar {
void fill_linear_kernels(LinearKernels& table);
}
namespace ssse3 {
void fill_linear_kernels(LinearKernels& table);
}
namespace avx2 {
void fill_linear_kernels(LinearKernels& table);
}
namespace avx512 {
void fill_linear_kernels(LinearKernels& table);
}
namespace avx512_vnni {
void fill_linear_kernels(LinearKernels& table);
}
namespace amx {
void fill_linear_kernels(LinearKernels& table);
}

}  // namespace heirloom::cpu
