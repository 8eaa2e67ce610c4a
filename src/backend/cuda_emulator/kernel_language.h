// The emulator's half of kernels/gpu.h: the same words, run on the CPU. Each GPU thread of a block is a fiber and gpu_sync()
// switches fibers; kernels register themselves by name and tier. Included by gpu.h only.
#pragma once

#include <cmath>

#include "backend/cuda_emulator/emulator.h"

#define GPU_JOIN2(a, b) a##b
#define GPU_JOIN(a, b) GPU_JOIN2(a, b)
#define KERNEL(name, threads, ...)                                                                             \
  static void name(__VA_ARGS__);                                                                               \
  [[maybe_unused]] static const bool GPU_JOIN(gpu_registered_, name) =                                         \
      heirloom::emulator::add(#name, GPU_TIER, threads, name);                                                 \
  static void name(__VA_ARGS__)
#define KERNEL_TOGETHER(name, threads, blocks, ...) KERNEL(name, threads, __VA_ARGS__)
#define DEVICE [[maybe_unused]] static inline
#define DEVICE_M inline
#define CONSTANT static const
#if defined(__SANITIZE_ADDRESS__)
#define GPU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GPU_ASAN 1
#endif
#endif
#ifdef GPU_ASAN
#define SHARED static  // red zones exist around plain statics only, so the emulator then runs one launch at a time
#else
#define SHARED static thread_local
#endif
#define DYN_SHARED(T, name) T* name = static_cast<T*>(heirloom::emulator::dynamic_shared())
#define UNROLL
#define UNROLL2
#define UNROLL4
#define NO_UNROLL

DEVICE int tid_x() { return heirloom::emulator::current.thread[0]; }
DEVICE int tid_y() { return heirloom::emulator::current.thread[1]; }
DEVICE int ntid_x() { return heirloom::emulator::current.block_size[0]; }
DEVICE int bid_x() { return heirloom::emulator::current.block[0]; }
DEVICE int bid_y() { return heirloom::emulator::current.block[1]; }
DEVICE int bid_z() { return heirloom::emulator::current.block[2]; }
DEVICE int nbid_x() { return heirloom::emulator::current.grid[0]; }
DEVICE int nbid_y() { return heirloom::emulator::current.grid[1]; }
DEVICE void gpu_sync() { heirloom::emulator::barrier(); }
DEVICE float gpu_exp2(float x) { return std::exp2(x); }
DEVICE float gpu_reciprocal_approx(float x) { return 1.0f / x; }
DEVICE float gpu_rsqrt_approx(float x) { return 1.0f / std::sqrt(x); }
// Not std::fma: without -mfma that is a library call ten times slower than the kernel around it. Results differ by roundings.
DEVICE float gpu_fma(float a, float b, float c) { return a * b + c; }
DEVICE float gpu_max(float a, float b) { return std::fmax(a, b); }
DEVICE float gpu_abs(float x) { return std::fabs(x); }
DEVICE float gpu_sqrt(float x) { return std::sqrt(x); }
DEVICE float gpu_round(float x) { return std::nearbyint(x); }
DEVICE float as_f32(u32 x) { return __builtin_bit_cast(float, x); }
DEVICE u32 as_u32(float x) { return __builtin_bit_cast(u32, x); }
DEVICE u32 gpu_prmt(u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 s = selector >> (4 * i), byte = static_cast<u32>(bytes >> (8 * (s & 7))) & 255;
    result |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return result;
}
DEVICE float half_to_f32(u16 h) { return heirloom::f16_to_f32(h); }
DEVICE u16 f32_to_half(float f) { return heirloom::f32_to_f16(f); }
DEVICE int gpu_atomic_add(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

// Warp operations of the sm_80 tier. The emulator exchanges registers between all threads of the block at a barrier, so each
// must be reached by the whole block (on a GPU: by the whole warp).
#if GPU_TIER >= 80
DEVICE float gpu_shuffle_xor(float v, int mask) { return heirloom::emulator::exchange(v, mask); }
DEVICE int gpu_dp4a(u32 a, u32 b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<int>(static_cast<s8>(a >> i)) * static_cast<int>(static_cast<s8>(b >> i));
  return sum;
}
DEVICE u32 f32_to_tf32(float v) { return (as_u32(v) + 0x1000u) & 0xffffe000u; }
DEVICE void gpu_mma_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { heirloom::emulator::mma_tf32(c, a, b); }
DEVICE void gpu_mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { heirloom::emulator::mma_bf16(c, a, b); }
#endif
