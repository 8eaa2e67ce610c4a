// Ops that make, move or search whole rows: byte_values, gather_rows, scatter_rows, argmax (contracts in ops/backend.h).
#pragma once

#include "backend/cpu/kernels/rows/rows_kernels.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

void byte_values(ThreadPool& pool, const std::uint8_t* bytes, const float* table, std::int64_t plane, ops::Matrix out);
void gather_rows(ThreadPool& pool, ops::Matrix x, const std::int32_t* rows, ops::Matrix out);
void scatter_rows(ThreadPool& pool, ops::Matrix x, const std::int32_t* rows, ops::Matrix out);

/// A row without a largest element (all NaN) gives index 0.
void argmax(ThreadPool& pool, CpuTier tier, ops::Matrix logits, std::int32_t* ids);

}  // namespace heirloom::cpu
