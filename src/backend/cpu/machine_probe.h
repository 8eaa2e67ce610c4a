// What this machine can do at most, measured: the yardstick of `bench`.
#pragma once

#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace heirloom::cpu {

struct MachineLimits {
  double read_bytes_per_s = 0;  // all threads streaming from memory that no cache holds
  double ops_per_s = 0;         // 8-bit multiply-adds of the tier's instruction, counted as two operations
};

/// Best of a few short runs with the pool's threads (about half a second, 512 MiB while it runs). Neighbours only take away,
/// so the best run is the machine's.
MachineLimits measure_machine(ThreadPool& pool, CpuTier tier);

}  // namespace heirloom::cpu
