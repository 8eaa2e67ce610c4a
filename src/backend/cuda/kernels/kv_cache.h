// The paged KV cache as kernels see it: a page holds 64 tokens of every attention layer, [layer][K, V][kv head][64][head_dim] of
// f32, f16 or bf16.
#pragma once

#include "backend/cuda/kernels/gpu.h"
#include "backend/cuda/kernels/step_table.h"

constexpr int kPageTokens = 64;

/// Element index, inside a page, of the first of the 64 rows of a head.
DEVICE u64 kv_offset(int layer, int v, int head, int num_kv_heads, int head_dim) {
  return ((u64)(layer * 2 + v) * (u64)num_kv_heads + (u64)head) * kPageTokens * (u64)head_dim;
}
DEVICE float kv_load(const u8* page, u64 at, int type) {
  if (type == kKvF32) return ((const float*)page)[at];
  const u16 v = ((const u16*)page)[at];
  return type == kKvF16 ? half_to_f32(v) : bf16_to_f32(v);
}
DEVICE void kv_store(u8* page, u64 at, int type, float v) {
  if (type == kKvF32) ((float*)page)[at] = v;
  else ((u16*)page)[at] = type == kKvF16 ? f32_to_half(v) : f32_to_bf16(v);
}
/// Eight values from element `at` on, whose address is a multiple of 16 bytes.
DEVICE void kv_load8(float (&out)[8], const u8* from, int at, int type) {
  if (type == 0) {
    UNROLL for (int i = 0; i < 8; i++) out[i] = ((const float*)from)[at + i];
    return;
  }
  const U4* words = (const U4*)(from + 2 * at);
  const u32 pairs[4] = {words->x, words->y, words->z, words->w};
  UNROLL for (int i = 0; i < 8; i++) {
    const u16 half = (u16)(pairs[i / 2] >> (16 * (i % 2)));
    out[i] = type == 1 ? half_to_f32(half) : bf16_to_f32(half);
  }
}
