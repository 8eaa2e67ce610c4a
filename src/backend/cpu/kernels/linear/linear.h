// Products of activations with packed weights, for one row (decode), a few (batches) and many (prefill). This file owns
// how the work is cut among threads and caches; the arithmetic is in the tier's kernels (linear_kernels.h).
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/kernels/linear/activations.h"
#include "backend/cpu/kernels/linear/linear_kernels.h"
#include "backend/cpu/weight/packed_weight.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

/// The kernels of a tier: those of the tiers below it where it has none of its own.
const LinearKernels& linear_kernels(CpuTier tier);

/// For each output i: out_i = x * weight_i^T + bias_i. Weights come from pack_weight with x.cols columns and one expert; quantised ones
/// meet x in 8 bits (ActBlock), float ones in float32. Every row's result is independent of the other rows. Not
/// thread-safe for one pool. Cannot fail but for memory.
void linear(ThreadPool& pool, CpuTier tier, ops::Matrix x, std::span<const ops::LinearOut> outs);

/// out[r, :] = table[ids[r], :], dequantised. 0 <= ids[r] < table.rows is the caller's duty.
void embed_rows(ThreadPool& pool, const ops::Weight& table, const std::int32_t* ids, ops::Matrix out);

/// The panels [first, last) of one expert for all rows of `x`: out[r, 16 p + j]; `rows` columns of out exist (out_stride
/// apart), the padding of the last panel is dropped. For use inside a parallel loop.
void multiply_panels(const LinearKernels& kernels, const PackedWeight& weight, std::int64_t expert, std::int64_t first,
                     std::int64_t last, const ActTiles& x, const float* bias, float* out, std::int64_t out_stride);

}  // namespace heirloom::cpu
