// The input row of a kernel for one token: as int8 in shared memory, made by each block for itself, normed on the way. Products are
// linear in the RMS scale, so values are rounded before it is known and it multiplies the sums: one barrier instead of three.
#pragma once

#include "backend/cuda/kernels/token_args.h"
#include "backend/cuda/kernels/warp_formats.h"
#include "backend/cuda/kernels/warp_sums.h"

#if GPU_TIER >= 90 && !defined(GPU_EMULATOR)
/// A load past the L1 before gpu_wait_inputs(), of what the kernel before the one before wrote. That one has ended when this kernel starts, if
/// the one between let it start after its own wait. PTX promises visibility after one's own wait only; that what an ended kernel wrote is
/// found in the L2 is how the hardware works.
DEVICE F4 gpu_load_l2(const F4* p) {
  u64 from;
  asm("cvta.to.global.u64 %0, %1;" : "=l"(from) : "l"(p));
  F4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
DEVICE float gpu_load_l2(const float* p) {
  u64 from;
  asm("cvta.to.global.u64 %0, %1;" : "=l"(from) : "l"(p));
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
/// Among the threads of a warp (in the emulator: of the block).
DEVICE void gpu_sync_warp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
#else
DEVICE F4 gpu_load_l2(const F4* p) { return *p; }
DEVICE float gpu_load_l2(const float* p) { return *p; }
DEVICE void gpu_sync_warp() { gpu_sync(); }
#endif

/// Up to two quads of a row for each thread: t and t + threads.
struct TokenQuads {
  F4 v[2];
};
template <class Load>
DEVICE TokenQuads token_quads(const Load& load, int quads, int threads) {
  TokenQuads q;
  q.v[0] = load(gpu_min_i(tid_x(), quads - 1));
  q.v[1] = F4{0, 0, 0, 0};
  if (quads > threads) q.v[1] = load(gpu_min_i(tid_x() + threads, quads - 1));
  return q;
}
DEVICE F4 quad_product(const F4& a, const F4& b) { return F4{a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
DEVICE float quad_dot(const F4& a, const F4& b, float sum) {
  return gpu_fma(a.w, b.w, gpu_fma(a.z, b.z, gpu_fma(a.y, b.y, gpu_fma(a.x, b.x, sum))));
}

/// Rounds x times weight to `row`; leaves the squares of x, summed by warps, in squares[0 .. threads / 32). To be found after a barrier.
DEVICE void token_stage_normed(const TokenQuads& x, const TokenQuads& weight, const Int8Row& row, float* squares, int quads, int threads) {
  const int t = tid_x();
  float sum = t < quads ? quad_dot(x.v[0], x.v[0], 0.0f) : 0.0f;
  if (quads > threads && t + threads < quads) sum = quad_dot(x.v[1], x.v[1], sum);
  row.store(t, quad_product(x.v[0], weight.v[0]), t < quads);
  if (quads > threads) row.store(t + threads, quad_product(x.v[1], weight.v[1]), t + threads < quads);
  sum = warp_total(sum);
  if ((t & 31) == 0) squares[t >> 5] = sum;
}
/// The RMS scale of what token_stage_normed left.
DEVICE float token_scale(const float* squares, int warps, float inverse_k, float eps) {
  float sum = squares[0];
  for (int i = 1; i < warps; i++) sum += squares[i];
  return gpu_rsqrt_approx(gpu_fma(sum, inverse_k, eps));
}
