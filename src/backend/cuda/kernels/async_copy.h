// Copies from global to shared memory that run on while the thread goes on (cp.async, compute capability 8.0). A thread waits for its
// own copies only: gpu_wait_copies(), then gpu_sync() before others' are read. In the emulator a copy is there at once.
#pragma once

#include "backend/cuda/kernels/gpu.h"

#if GPU_TIER >= 80
#ifndef GPU_EMULATOR
/// 16 bytes; both addresses are multiples of 16.
DEVICE void gpu_copy16_async(void* shared, const void* global) {
  u64 to, from;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(to) : "l"(shared));
  asm("cvta.to.global.u64 %0, %1;" : "=l"(from) : "l"(global));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)to), "l"(from) : "memory");
}
DEVICE void gpu_wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
DEVICE void gpu_copy16_async(void* shared, const void* global) {
  *(U4*)shared = *(const U4*)global;
}
DEVICE void gpu_wait_copies() {}
#endif
#endif
