// add, swiglu, gelu and add_weighted_rows over matrices (contracts in ops/backend.h).
#pragma once

#include "backend/cpu/kernels/elementwise/elementwise_kernels.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

const ElementwiseKernels& elementwise_kernels(CpuTier tier);

void add(ThreadPool& pool, CpuTier tier, ops::Matrix x, ops::Matrix y);
void swiglu(ThreadPool& pool, CpuTier tier, ops::Matrix gate, ops::Matrix up, ops::Matrix out);
void gelu(ThreadPool& pool, CpuTier tier, ops::Matrix x, ops::Gelu kind);
void add_weighted_rows(ThreadPool& pool, CpuTier tier, ops::Matrix table, const std::int32_t* rows, const float* weights,
                       int per_row, ops::Matrix out);

}  // namespace heirloom::cpu
