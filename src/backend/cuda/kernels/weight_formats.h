// How each weight type lies in device memory, and how a kernel reads it: in groups that one thread takes with 16-byte loads.
// Types whose GGUF blocks are not 16-byte aligned are split into planes at upload (repack.cu), each plane [rows * cols]:
//   q8_0  int8 quants | f16 scales, one per 32                  q4_0  nibbles (16 bytes per 32) | f16 scales
//   q6_k  low nibbles (128 per 256) | high bits (64) | int8 scales (16) | f16 scale
// q4_k (144 bytes a block) and q5_k (176) stay as GGUF has them; f32, f16, bf16 are plain rows.
// Element order inside a block is GGUF's (ggml's block_q4_0, block_q4_K, ...).
//
// A format F has: kGroup weights a group (kGroup / 4 quads; kScattered if they are not consecutive), Raw (what one thread loads), load(), position(group, quad) = the
// row's element index of a quad, values(raw, quad) = its four weights, dot(raw, x, group) = sum of weight * x over the group,
// where x(i) gives the activations 4i .. 4i + 3.
#pragma once

#include "backend/cuda/kernels/quads.h"

struct WeightView {
  const u8* data;
  u64 elements;  // rows * cols of the whole weight (all experts): where the planes start
};

DEVICE F4 scaled(F4 v, float s) { return F4{v.x * s, v.y * s, v.z * s, v.w * s}; }
DEVICE float sum4(F4 x) { return (x.x + x.y) + (x.z + x.w); }
/// Four unsigned bytes as floats, minus `bias` (2^23 + offset).
DEVICE F4 bytes_to_f4(u32 w, float bias) {
  return F4{as_f32(gpu_prmt(w, 0x4B000000u, 0x7440)) - bias, as_f32(gpu_prmt(w, 0x4B000000u, 0x7441)) - bias,
            as_f32(gpu_prmt(w, 0x4B000000u, 0x7442)) - bias, as_f32(gpu_prmt(w, 0x4B000000u, 0x7443)) - bias};
}
DEVICE u32 word(const U4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
DEVICE u32 word(const U2& v, int i) { return i == 0 ? v.x : v.y; }
DEVICE U4 load16(const u8* p) {
  const U4* q = (const U4*)p;
  U4 r;
  r.x = q->x;
  r.y = q->y;
  r.z = q->z;
  r.w = q->w;
  return r;
}
DEVICE U2 load8(const u8* p) {
  const U2* q = (const U2*)p;
  U2 r;
  r.x = q->x;
  r.y = q->y;
  return r;
}
constexpr float kByteBias = 8388608.0f;  // 2^23

struct FormatF32 {
  static constexpr int kGroup = 4;
  static constexpr bool kScattered = false;
  struct Raw { U4 w; };
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) { return Raw{load16(v.data + (row_start + (u64)(group * 4)) * 4)}; }
  DEVICE_M static int position(int group, int) { return group * 4; }
  DEVICE_M static F4 values(const Raw& r, int) { return F4{as_f32(r.w.x), as_f32(r.w.y), as_f32(r.w.z), as_f32(r.w.w)}; }
  template <class X> DEVICE_M static float dot(const Raw& r, const X& x, int group) { return dot4(values(r, 0), x(group), 0.0f); }
};

template <bool Bf16>
struct Format16 {
  static constexpr int kGroup = 8;
  static constexpr bool kScattered = false;
  struct Raw { U4 w; };
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) { return Raw{load16(v.data + (row_start + (u64)(group * 8)) * 2)}; }
  DEVICE_M static int position(int group, int quad) { return group * 8 + quad * 4; }
  DEVICE_M static F2 two(u32 w) {
    if (Bf16) return F2{as_f32(w << 16), as_f32(w & 0xffff0000u)};
    return F2{half_to_f32((u16)(w & 0xffff)), half_to_f32((u16)(w >> 16))};
  }
  DEVICE_M static F4 values(const Raw& r, int quad) {
    const F2 a = two(quad ? r.w.z : r.w.x), b = two(quad ? r.w.w : r.w.y);
    return F4{a.x, a.y, b.x, b.y};
  }
  template <class X> DEVICE_M static float dot(const Raw& r, const X& x, int group) {
    return dot4(values(r, 1), x(group * 2 + 1), dot4(values(r, 0), x(group * 2), 0.0f));
  }
};
typedef Format16<false> FormatF16;
typedef Format16<true> FormatBf16;

struct FormatQ8_0 {
  static constexpr int kGroup = 16;
  static constexpr bool kScattered = false;
  struct Raw { U4 w; float d; };
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u64 at = row_start + (u64)(group * 16);
    return Raw{load16(v.data + at), half_to_f32(((const u16*)(v.data + v.elements))[at / 32])};
  }
  DEVICE_M static int position(int group, int quad) { return group * 16 + quad * 4; }
  DEVICE_M static F4 unscaled(const Raw& r, int quad) { return bytes_to_f4(word(r.w, quad) ^ 0x80808080u, kByteBias + 128.0f); }
  DEVICE_M static F4 values(const Raw& r, int quad) { return scaled(unscaled(r, quad), r.d); }
  template <class X> DEVICE_M static float dot(const Raw& r, const X& x, int group) {
    float s = 0;
    UNROLL for (int i = 0; i < 4; i++) s = dot4(unscaled(r, i), x(group * 4 + i), s);
    return s * r.d;
  }
};

struct FormatQ4_0 {
  static constexpr int kGroup = 32;
  static constexpr bool kScattered = false;
  struct Raw { U4 w; float d; };
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u64 at = row_start + (u64)(group * 32);
    return Raw{load16(v.data + at / 2), half_to_f32(((const u16*)(v.data + v.elements / 2))[at / 32])};
  }
  DEVICE_M static int position(int group, int quad) { return group * 32 + quad * 4; }
  DEVICE_M static F4 unscaled(const Raw& r, int quad) {  // low nibbles are elements 0..15, high ones 16..31
    const u32 w = word(r.w, quad & 3);
    return bytes_to_f4((quad < 4 ? w : w >> 4) & 0x0f0f0f0fu, kByteBias + 8.0f);
  }
  DEVICE_M static F4 values(const Raw& r, int quad) { return scaled(unscaled(r, quad), r.d); }
  template <class X> DEVICE_M static float dot(const Raw& r, const X& x, int group) {
    float s = 0;
    UNROLL for (int i = 0; i < 8; i++) s = dot4(unscaled(r, i), x(group * 8 + i), s);
    return s * r.d;
  }
};

/// The 6-bit scale and minimum of sub-block j (0..7) of a K-quant's 12 packed bytes, given as three words.
DEVICE F2 k_scale_min(u32 a, u32 b, u32 c, int j) {
  const int shift = (j & 3) * 8;
  u32 scale, minimum;
  if (j < 4) {
    scale = a >> shift & 63;
    minimum = b >> shift & 63;
  } else {
    scale = (c >> shift & 15) | (a >> shift >> 6 & 3) << 4;
    minimum = (c >> shift >> 4 & 15) | (b >> shift >> 6 & 3) << 4;
  }
  return F2{(float)scale, (float)minimum};
}

/// q4_k and q5_k: a block of 256 has f16 d, f16 dmin, 12 bytes of scales, (q5_k: 32 bytes of fifth bits,) 128 bytes of nibbles.
/// A group is 16 bytes of nibbles: 16 weights of sub-block 2c and 16 of sub-block 2c + 1.
template <bool FiveBits>
struct FormatK45 {
  static constexpr int kGroup = 32;
  static constexpr bool kScattered = true;
  static constexpr int kBlockBytes = FiveBits ? 176 : 144;
  struct Raw { U4 w, high; F2 scale, minimum; };
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u8* block = v.data + (row_start / 256 + (u64)(group >> 3)) * kBlockBytes;
    const int sub = group & 7, chunk = sub >> 1;
    const U4 head = load16(block);
    const float d = half_to_f32((u16)(head.x & 0xffff)), dmin = half_to_f32((u16)(head.x >> 16));
    const F2 s0 = k_scale_min(head.y, head.z, head.w, 2 * chunk), s1 = k_scale_min(head.y, head.z, head.w, 2 * chunk + 1);
    Raw r{};
    r.w = load16(block + (FiveBits ? 48 : 16) + 32 * chunk + 16 * (sub & 1));
    if (FiveBits) {
      const U4 h = load16(block + 16 + 16 * (sub & 1));
      r.high = U4{h.x >> (2 * chunk), h.y >> (2 * chunk), h.z >> (2 * chunk), h.w >> (2 * chunk)};
    }
    r.scale = F2{d * s0.x, d * s1.x};
    r.minimum = F2{dmin * s0.y, dmin * s1.y};
    return r;
  }
  DEVICE_M static int position(int group, int quad) {
    const int sub = group & 7;
    return (group >> 3) * 256 + (sub >> 1) * 64 + (sub & 1) * 16 + (quad >> 2) * 32 + (quad & 3) * 4;
  }
  DEVICE_M static F4 unscaled(const Raw& r, int quad) {
    const u32 w = word(r.w, quad & 3);
    u32 bytes = (quad < 4 ? w : w >> 4) & 0x0f0f0f0fu;
    if (FiveBits) bytes |= ((word(r.high, quad & 3) >> (quad >> 2)) & 0x01010101u) << 4;
    return bytes_to_f4(bytes, kByteBias);
  }
  DEVICE_M static F4 values(const Raw& r, int quad) {
    const float s = quad < 4 ? r.scale.x : r.scale.y, m = quad < 4 ? r.minimum.x : r.minimum.y;
    const F4 q = unscaled(r, quad);
    return F4{s * q.x - m, s * q.y - m, s * q.z - m, s * q.w - m};
  }
  template <class X> DEVICE_M static float dot(const Raw& r, const X& x, int group) {
    const int at = position(group, 0) / 4;
    float total = 0;
    UNROLL for (int h = 0; h < 2; h++) {
      float s = 0, sum = 0;
      UNROLL for (int i = 0; i < 4; i++) {
        const F4 a = x(at + 8 * h + i);
        s = dot4(unscaled(r, 4 * h + i), a, s);
        sum += sum4(a);
      }
      total = gpu_fma(h ? r.scale.y : r.scale.x, s, total);
      total = gpu_fma(-(h ? r.minimum.y : r.minimum.x), sum, total);
    }
    return total;
  }
};
typedef FormatK45<false> FormatQ4_K;
typedef FormatK45<true> FormatQ5_K;

/// q6_k: a group is 8 consecutive l of one half of a block: 8 + 8 bytes of low nibbles, 8 bytes of high bit pairs, 32 weights at
/// l, l + 32, l + 64, l + 96.
struct FormatQ6_K {
  static constexpr int kGroup = 32;
  static constexpr bool kScattered = true;
  struct Raw { U2 low0, low1, high; F4 scale; };
  DEVICE_M static float scale_of(const Raw& r, int part) { return part == 0 ? r.scale.x : part == 1 ? r.scale.y : part == 2 ? r.scale.z : r.scale.w; }
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u64 block = row_start / 256 + (u64)(group >> 3);
    const int half = (group & 7) >> 2, l = (group & 3) * 8;
    const u8* low = v.data + block * 128 + half * 64 + l;
    const u8* high = v.data + v.elements / 2 + block * 64 + half * 32 + l;
    const s8* scales = (const s8*)(v.data + v.elements / 4 * 3 + block * 16 + half * 8 + l / 16);
    const float d = half_to_f32(((const u16*)(v.data + v.elements / 16 * 13))[block]);
    Raw r;
    r.low0 = load8(low);
    r.low1 = load8(low + 32);
    r.high = load8(high);
    r.scale = F4{d * (float)scales[0], d * (float)scales[2], d * (float)scales[4], d * (float)scales[6]};
    return r;
  }
  DEVICE_M static int position(int group, int quad) {
    return (group >> 3) * 256 + ((group & 7) >> 2) * 128 + (group & 3) * 8 + (quad >> 1) * 32 + (quad & 1) * 4;
  }
  DEVICE_M static F4 unscaled(const Raw& r, int quad) {
    const int part = quad >> 1, i = quad & 1;
    const u32 low = word(part & 1 ? r.low1 : r.low0, i) >> (part & 2 ? 4 : 0) & 0x0f0f0f0fu;
    const u32 high = (word(r.high, i) >> (2 * part) & 0x03030303u) << 4;
    return bytes_to_f4(low | high, kByteBias + 32.0f);
  }
  DEVICE_M static F4 values(const Raw& r, int quad) { return scaled(unscaled(r, quad), scale_of(r, quad >> 1)); }
  template <class X> DEVICE_M static float dot(const Raw& r, const X& x, int group) {
    const int at = position(group, 0) / 4;
    float total = 0;
    UNROLL for (int part = 0; part < 4; part++) {
      const float s = dot4(unscaled(r, 2 * part + 1), x(at + 8 * part + 1), dot4(unscaled(r, 2 * part), x(at + 8 * part), 0.0f));
      total = gpu_fma(scale_of(r, part), s, total);
    }
    return total;
  }
};
