// Fragments of bf16 tiles in shared memory for mma.m16n8k16, by ldmatrix (compute capability 7.5): one instruction for four words.
// A tile's rows are 16-byte aligned. Where a lane reads is computed once (a_lane, ..); what is added to it in elements is best a constant,
// which the instruction then holds. Reached by whole warps.
#pragma once

#include "backend/cuda/kernels/gpu.h"

#if GPU_TIER >= 80

#ifdef GPU_EMULATOR
typedef const u16* TileLane;
/// A: 16 rows of a tile, 16 columns.
DEVICE TileLane a_lane(const u16* tile, int pitch, int lane) { return tile + (lane >> 2) * pitch + 2 * (lane & 3); }
/// B of two neighbouring products whose 16 columns are rows of the tile, of which 16 elements count.
DEVICE TileLane b_lane(const u16* tile, int pitch, int lane) { return tile + (lane >> 2) * pitch + 2 * (lane & 3); }
/// The same from a tile that holds B as it is: 16 rows, of which 16 columns count.
DEVICE TileLane bt_lane(const u16* tile, int pitch, int lane) { return tile + 2 * (lane & 3) * pitch + (lane >> 2); }

DEVICE void load_a(u32 (&a)[4], TileLane lane, int offset, int pitch) {
  for (int i = 0; i < 4; i++) a[i] = *(const u32*)(lane + offset + (i & 1) * 8 * pitch + (i >> 1) * 8);
}
DEVICE void load_b(u32 (&b0)[2], u32 (&b1)[2], TileLane lane, int offset, int pitch) {
  for (int i = 0; i < 2; i++) {
    b0[i] = *(const u32*)(lane + offset + i * 8);
    b1[i] = *(const u32*)(lane + offset + 8 * pitch + i * 8);
  }
}
DEVICE void load_bt(u32 (&b0)[2], u32 (&b1)[2], TileLane lane, int offset, int pitch) {
  for (int i = 0; i < 2; i++) {
    const u16* cell = lane + offset + i * 8 * pitch;
    b0[i] = (u32)cell[0] | (u32)cell[pitch] << 16;
    b1[i] = (u32)cell[8] | (u32)cell[pitch + 8] << 16;
  }
}
#else
typedef u32 TileLane;  // address in shared memory
DEVICE u32 gpu_shared_address(const u16* p) {
  u64 at;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(p));
  return (u32)at;
}
DEVICE TileLane a_lane(const u16* tile, int pitch, int lane) { return gpu_shared_address(tile + (lane & 15) * pitch + (lane >> 4) * 8); }
DEVICE TileLane b_lane(const u16* tile, int pitch, int lane) {
  return gpu_shared_address(tile + ((lane & 7) + (lane >> 4) * 8) * pitch + ((lane >> 3) & 1) * 8);
}
DEVICE TileLane bt_lane(const u16* tile, int pitch, int lane) { return gpu_shared_address(tile + (lane & 15) * pitch + (lane >> 4) * 8); }

/// Four 8x8 matrices; lane 8 i + j gives row j of the i-th.
DEVICE void load_a(u32 (&a)[4], TileLane lane, int offset, int) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(lane + 2 * (u32)offset)
               : "memory");
}
DEVICE void load_b(u32 (&b0)[2], u32 (&b1)[2], TileLane lane, int offset, int) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b0[0]), "=r"(b0[1]), "=r"(b1[0]), "=r"(b1[1])
               : "r"(lane + 2 * (u32)offset)
               : "memory");
}
DEVICE void load_bt(u32 (&b0)[2], u32 (&b1)[2], TileLane lane, int offset, int) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b0[0]), "=r"(b0[1]), "=r"(b1[0]), "=r"(b1[1])
               : "r"(lane + 2 * (u32)offset)
               : "memory");
}
#endif

#endif
