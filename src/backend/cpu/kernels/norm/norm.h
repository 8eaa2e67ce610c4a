// rms_norm, add_rms_norm and layer_norm over matrices (contracts in ops/backend.h): rows are shared out among threads.
#pragma once

#include "backend/cpu/kernels/norm/norm_kernels.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

const NormKernels& norm_kernels(CpuTier tier);

void rms_norm(ThreadPool& pool, CpuTier tier, ops::Matrix x, const float* weight, float eps, ops::Matrix out);
void add_rms_norm(ThreadPool& pool, CpuTier tier, ops::Matrix residual, ops::Matrix delta, const float* weight, float eps,
                  ops::Matrix out);
void layer_norm(ThreadPool& pool, CpuTier tier, ops::Matrix x, const float* weight, const float* bias, float eps,
                ops::Matrix out);

}  // namespace heirloom::cpu
