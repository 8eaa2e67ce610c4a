// Reductions over a block through shared memory, without shuffles or warp lockstep: two barriers instead of the log2(n) of a
// tree (rmsnorm of 1x2048 on an H200: 1.63 against 2.76 us). The order of summation depends on the block size alone.
#pragma once

#include "backend/cuda/kernels/gpu.h"

struct Sum {
  DEVICE_M float operator()(float a, float b) const { return a + b; }
};
struct Max {
  DEVICE_M float operator()(float a, float b) const { return gpu_max(a, b); }
};

/// The reduction of v over all `Threads` threads (a multiple of 32), to every thread. `scratch`: Threads + 32 floats that no thread reads any more.
/// The same call may follow at once: whoever passed this one's second barrier has read the parts, whoever passes the next one's first has read the last 32.
template <int Threads, class Op>
DEVICE float block_reduce_again(float v, float* scratch, Op op) {
  const int t = tid_x();
  scratch[t] = v;
  gpu_sync();
  if (t < 32) {
    v = scratch[t];
    UNROLL for (int i = 1; i < Threads / 32; i++) v = op(v, scratch[t + 32 * i]);
    scratch[Threads + t] = v;
  }
  gpu_sync();
  const F4* last = (const F4*)(scratch + Threads);
  F4 total = last[0];
  UNROLL for (int i = 1; i < 8; i++) {
    const F4 next = last[i];
    total.x = op(total.x, next.x);
    total.y = op(total.y, next.y);
    total.z = op(total.z, next.z);
    total.w = op(total.w, next.w);
  }
  return op(op(total.x, total.y), op(total.z, total.w));
}
/// The same where `scratch` may still be read: a barrier more.
template <int Threads, class Op>
DEVICE float block_reduce(float v, float* scratch, Op op) {
  gpu_sync();
  return block_reduce_again<Threads>(v, scratch, op);
}
