// Experts that stay in host memory reach the GPU in the layout that the CPU's kernels read (backend/cpu/weight/packed_layout.h),
// so that one copy in host memory serves both; this unpacks them into plain rows for the grouped products: the body of
// panel_rows_<type>.cu. A panel is 16 rows; inside it k ascends in blocks, and in a block k-group g (4 columns) of the 16 rows
// lies side by side.
//   out[expert][row][col], f32 or bf16, of `panels` panels, panels_per_expert an expert (the last one is padded)
// One thread unpacks 32 columns of a row, so that 16 rows side by side read whole 64-byte lines, into a tile in shared memory, from
// which whole rows go out: written straight to the rows, each store met 32 sectors and filled a quarter of each (0.6 ms for 72 MiB of
// q4_0 on an H200, six times the bytes' time). grid (ceil(columns / 512), min(panels, 65535)), 256 threads, 16 or 33 KB shared.
#pragma once

#include "backend/cuda/kernels/weight_rows.h"

DEVICE u32 load_u32(const u8* p) { return *(const u32*)p; }
DEVICE u32 nibbles_of(const u8* nibbles, int lane, int quad) {
  const u32 w = load_u32(nibbles + (quad & 3) * 64 + lane * 4);
  return (quad < 4 ? w : w >> 4) & 0x0f0f0f0fu;
}
DEVICE float panel_half(const u8* p, int lane) { return half_to_f32(((const u16*)p)[lane]); }

// A panel type P has: quad(panel, lane, block, q) = the four weights at columns 32 block + 4 q of row `lane`.
struct PanelQ4_0 {
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const u8* b = panel + (u64)block * 288;
    return scaled(bytes_to_f4(nibbles_of(b + 32, lane, q), kByteBias + 8.0f), panel_half(b, lane));
  }
};
struct PanelQ8_0 {
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const u8* b = panel + (u64)block * 544;
    return scaled(bytes_to_f4(load_u32(b + 32 + q * 64 + lane * 4), kByteBias + 128.0f), panel_half(b, lane));
  }
};
struct PanelQ8_X {
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const u8* b = panel + (u64)block * 640;
    const float s = ((const float*)b)[lane], m = ((const float*)(b + 64))[lane];
    const F4 v = bytes_to_f4(load_u32(b + 128 + q * 64 + lane * 4), kByteBias + 128.0f);
    return F4{s * v.x + m, s * v.y + m, s * v.z + m, s * v.w + m};
  }
};
template <bool FiveBits>
struct PanelK45 {
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const int sub_bytes = FiveBits ? 352 : 288;
    const u8* b = panel + (u64)(block >> 3) * (u64)(64 + 8 * sub_bytes);
    const u8* sub = b + 64 + (block & 7) * sub_bytes;
    const float s = panel_half(b, lane) * (float)sub[lane], m = panel_half(b + 32, lane) * (float)sub[16 + lane];
    u32 codes = nibbles_of(sub + 32, lane, q);
    if (FiveBits) codes |= (load_u32(sub + 288 + lane * 4) >> q & 0x01010101u) << 4;
    const F4 v = bytes_to_f4(codes, kByteBias);
    return F4{s * v.x - m, s * v.y - m, s * v.z - m, s * v.w - m};
  }
};
struct PanelQ6_K {
  DEVICE_M static u32 words_right(u32 v, int shift) { return v >> shift & (0xffffu >> shift) * 0x10001u; }
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const u8* b = panel + (u64)(block >> 3) * 3360;
    const u8* sub = b + 32 + (block & 7) * 416;
    const float s = panel_half(b, lane) * (float)(s8)sub[(q >> 2) * 16 + lane];
    const u8* bytes = sub + 32 + (q >> 2) * 192 + lane * 4;
    const u32 codes = (q & 3) < 3 ? load_u32(bytes + (q & 3) * 64)
                                  : words_right(load_u32(bytes), 2) ^ words_right(load_u32(bytes + 64), 4) ^ words_right(load_u32(bytes + 128), 6);
    return scaled(bytes_to_f4(codes & 0x3f3f3f3fu, kByteBias + 32.0f), s);
  }
};
struct PanelF32 {
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const float* v = (const float*)panel + (block * 32 + q * 4) * 16 + lane;
    return F4{v[0], v[16], v[32], v[48]};
  }
};
struct PanelF16 {
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const u16* v = (const u16*)panel + (block * 32 + q * 4) * 16 + lane;
    return F4{half_to_f32(v[0]), half_to_f32(v[16]), half_to_f32(v[32]), half_to_f32(v[48])};
  }
};
struct PanelBf16 {
  DEVICE_M static F4 quad(const u8* panel, int lane, int block, int q) {
    const u16* v = (const u16*)panel + (block * 32 + q * 4) * 16 + lane;
    return F4{bf16_to_f32(v[0]), bf16_to_f32(v[16]), bf16_to_f32(v[32]), bf16_to_f32(v[48])};
  }
};

template <class P, class Out>
DEVICE void panel_rows(Out* out, const u8* data, u64 panel_bytes, int panels, int panels_per_expert, int rows, int cols) {
  constexpr int kCols = 512, kPitch = kCols + 16 / (int)sizeof(Out), kPairs = kCols * (int)sizeof(Out) / 8;  // words of 8 bytes in a row
  SHARED U4 tile4[16 * kPitch * sizeof(Out) / 16];
  Out* tile = (Out*)tile4;
  gpu_wait_inputs();
  const int t = tid_x(), lane = t & 15, first = bid_x() * kCols, block = first / 32 + (t >> 4);
  for (int panel = bid_y(); panel < panels; panel += nbid_y()) {
    const u8* from = data + (u64)panel * panel_bytes;
    UNROLL for (int q = 0; q < 8; q++) {
      if (block * 32 + q * 4 < cols) store4(tile + lane * kPitch + (t >> 4) * 32 + q * 4, P::quad(from, lane, block, q));
    }
    gpu_sync();
    const int row0 = panel % panels_per_expert * 16;
    Out* to = out + ((u64)(panel / panels_per_expert) * (u64)rows + (u64)row0) * (u64)cols + (u64)first;
    UNROLL4 for (int i = t; i < 16 * kPairs; i += 256) {
      const int r = i / kPairs, c = i % kPairs * (8 / (int)sizeof(Out));
      if (row0 + r >= rows || first + c >= cols) continue;
      const U2* word = (const U2*)(tile + r * kPitch + c);
      U2* place = (U2*)(to + (u64)r * (u64)cols + (u64)c);
      place->x = word->x;
      place->y = word->y;
    }
    gpu_sync();
  }
}

#define PANEL_ROWS(type, Panel)                                                                                             \
  KERNEL(panel_##type##_f32, 256, float* out, const u8* data, u64 panel_bytes, int panels, int panels_per_expert, int rows, \
         int cols) {                                                                                                        \
    panel_rows<Panel>(out, data, panel_bytes, panels, panels_per_expert, rows, cols);                                       \
  }                                                                                                                         \
  KERNEL(panel_##type##_bf16, 256, u16* out, const u8* data, u64 panel_bytes, int panels, int panels_per_expert, int rows,  \
         int cols) {                                                                                                        \
    panel_rows<Panel>(out, data, panel_bytes, panels, panels_per_expert, rows, cols);                                       \
  }
