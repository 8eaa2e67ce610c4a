// The paged KV cache as kernels see it: a page holds 64 tokens of every attention layer, [layer][K, V][kv head][64][head_dim] of
// f32, f16 or bf16.
#pragma once

#include "backend/cuda/kernels/gpu.h"
#include "backend/cuda/kernels/step_table.h"

constexpr int kPageTokens = 64;
enum KvType { kKvF32, kKvF16, kKvBf16 };

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
