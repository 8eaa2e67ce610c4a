// Fragments of bf16 tiles in shared memory for mma.m16n8k16, by ldmatrix (compute capability 7.5): one instruction for four words.
// A tile's rows are 16-byte aligned. Reached by whole warps.
#pragma once

#include "backend/cuda/kernels/gpu.h"

#if GPU_TIER >= 80

#ifndef GPU_EMULATOR
/// Four 8x8 matrices; lane 8 i + j gives row j of the i-th.
DEVICE void gpu_load_matrices(u32& r0, u32& r1, u32& r2, u32& r3, const u16* row) {
  u64 at;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"((u32)at)
               : "memory");
}
#endif

/// A: rows 0 .. 15 and columns 0 .. 15 of `tile`.
DEVICE void load_a_16x16(u32 (&a)[4], const u16* tile, int pitch, int lane) {
#ifdef GPU_EMULATOR
  const u16* cell = tile + (lane >> 2) * pitch + 2 * (lane & 3);
  UNROLL for (int i = 0; i < 4; i++) a[i] = *(const u32*)(cell + (i & 1) * 8 * pitch + (i >> 1) * 8);
#else
  gpu_load_matrices(a[0], a[1], a[2], a[3], tile + (lane & 15) * pitch + (lane >> 4) * 8);
#endif
}

/// B of two neighbouring products: their 16 columns are rows of `tile`, of which 16 elements count.
DEVICE void load_b_2x8x16(u32 (&b0)[2], u32 (&b1)[2], const u16* tile, int pitch, int lane) {
#ifdef GPU_EMULATOR
  const u16* cell = tile + (lane >> 2) * pitch + 2 * (lane & 3);
  UNROLL for (int i = 0; i < 2; i++) {
    b0[i] = *(const u32*)(cell + i * 8);
    b1[i] = *(const u32*)(cell + 8 * pitch + i * 8);
  }
#else
  gpu_load_matrices(b0[0], b0[1], b1[0], b1[1], tile + ((lane & 7) + (lane >> 4) * 8) * pitch + ((lane >> 3) & 1) * 8);
#endif
}

#endif
