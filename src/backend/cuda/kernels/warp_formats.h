// Weights times activations on sm80 and newer (gemv_warp.h): for each type, what a lane loads of a row (Raw, as it lies in memory, so
// that nothing waits for it before it is used), and the dot product with a row of activations in shared memory. Quantised weights
// meet activations of 8 bits in integer dot products, as on the CPU: unpacking weights to floats is three instructions a weight, of
// which an H200 has too few to read its memory at full rate; dp4a takes a quarter of one. Blocks lie as weight_formats.h says.
#pragma once

#include "backend/cuda/kernels/float_row.h"
#include "backend/cuda/kernels/weight_formats.h"

/// A row of k int8, and for each 32 of them their scale and the sums of all, of the first and of the last 16.
struct Int8Row {
  u32* words;
  F4* blocks;
  static constexpr bool kInt8 = true;
  DEVICE_M static int bytes(int k) { return k + k / 2; }
  DEVICE_M static Int8Row at(u8* memory, int k) { return Int8Row{(u32*)memory, (F4*)(memory + k)}; }
  DEVICE_M static int swizzle(int unit) { return unit ^ (unit >> 3 & 1); }  // of 16 bytes: lanes read 32 bytes apart
  /// Quad i of the row; by whole warps of consecutive i, since 8 lanes share a scale. d = max |x| / 127, q = rint(x / d).
  DEVICE_M void store(int i, F4 v, bool inside) const {
    float largest = gpu_max(gpu_max(gpu_abs(v.x), gpu_abs(v.y)), gpu_max(gpu_abs(v.z), gpu_abs(v.w)));
    UNROLL for (int mask = 1; mask < 8; mask *= 2) largest = gpu_max(largest, gpu_shuffle_xor(largest, mask));
    const float inverse = largest > 1e-30f ? 127.0f * gpu_reciprocal_approx(largest) : 0.0f;
    const float kToInt = 12582912.0f;  // 1.5 * 2^23: the low byte of the sum is the nearest integer
    const u32 low = gpu_prmt(as_u32(v.x * inverse + kToInt), as_u32(v.y * inverse + kToInt), 0x0040);
    const u32 high = gpu_prmt(as_u32(v.z * inverse + kToInt), as_u32(v.w * inverse + kToInt), 0x0040);
    const u32 word = gpu_prmt(low, high, 0x5410);
    float sum = (float)gpu_dp4a(word, 0x01010101u, 0);
    sum += gpu_shuffle_xor(sum, 1);
    sum += gpu_shuffle_xor(sum, 2);
    const float other = gpu_shuffle_xor(sum, 4);
    if (!inside) return;
    words[swizzle(i >> 2) * 4 + (i & 3)] = word;
    if ((i & 7) == 0) blocks[i >> 3] = F4{largest * (1.0f / 127.0f), sum + other, sum, other};
  }
  DEVICE_M U4 unit(int i) const { return ((const U4*)words)[swizzle(i)]; }
  DEVICE_M U2 half_unit(int i) const { return ((const U2*)words)[swizzle(i >> 1) * 2 + (i & 1)]; }
};

DEVICE int dot16(const U4& w, const U4& x, int sum) {
  sum = gpu_dp4a(w.x, x.x, sum);
  sum = gpu_dp4a(w.y, x.y, sum);
  sum = gpu_dp4a(w.z, x.z, sum);
  return gpu_dp4a(w.w, x.w, sum);
}
DEVICE U4 low_nibbles(const U4& w) { return U4{w.x & 0x0f0f0f0fu, w.y & 0x0f0f0f0fu, w.z & 0x0f0f0f0fu, w.w & 0x0f0f0f0fu}; }
DEVICE U4 high_nibbles(const U4& w) { return low_nibbles(U4{w.x >> 4, w.y >> 4, w.z >> 4, w.w >> 4}); }

template <class F>
struct WarpFloat {
  typedef FloatRow Row;
  typedef typename F::Raw Raw;
  static constexpr int kGroup = F::kGroup;
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) { return F::load(v, row_start, group); }
  template <class X> DEVICE_M static float dot(const Raw& r, const X& x, int group) { return F::dot(r, x, group); }
};
typedef WarpFloat<FormatF32> WarpF32;
typedef WarpFloat<FormatF16> WarpF16;
typedef WarpFloat<FormatBf16> WarpBf16;

struct WarpQ8_0 {
  typedef Int8Row Row;
  struct Raw { U4 low, high; u16 d; };
  static constexpr int kGroup = 32;
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u64 block = row_start / 32 + (u64)group;
    return Raw{load16(v.data + block * 32), load16(v.data + block * 32 + 16), ((const u16*)(v.data + v.elements))[block]};
  }
  DEVICE_M static float dot(const Raw& r, const Int8Row& x, int group) {
    const int sum = dot16(r.high, x.unit(2 * group + 1), dot16(r.low, x.unit(2 * group), 0));
    return half_to_f32(r.d) * x.blocks[group].x * (float)sum;
  }
};

struct WarpQ4_0 {
  typedef Int8Row Row;
  struct Raw { U4 w; u16 d; };
  static constexpr int kGroup = 32;
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u64 block = row_start / 32 + (u64)group;
    return Raw{load16(v.data + block * 16), ((const u16*)(v.data + v.elements / 2))[block]};
  }
  DEVICE_M static float dot(const Raw& r, const Int8Row& x, int group) {
    const int sum = dot16(high_nibbles(r.w), x.unit(2 * group + 1), dot16(low_nibbles(r.w), x.unit(2 * group), 0));
    const F4 block = x.blocks[group];
    return half_to_f32(r.d) * block.x * gpu_fma(-8.0f, block.y, (float)sum);
  }
};

/// A group is 16 weights of sub-block 2c and 16 of sub-block 2c + 1, as in FormatK45.
template <bool FiveBits>
struct WarpK45 {
  typedef Int8Row Row;
  struct Raw { U4 head, w, high; };
  static constexpr int kGroup = 32;
  static constexpr int kBlockBytes = FiveBits ? 176 : 144;
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u8* block = v.data + (row_start / 256 + (u64)(group >> 3)) * kBlockBytes;
    const int sub = group & 7;
    Raw r{};
    r.head = load16(block);
    r.w = load16(block + (FiveBits ? 48 : 16) + 32 * (sub >> 1) + 16 * (sub & 1));
    if (FiveBits) r.high = load16(block + 16 + 16 * (sub & 1));
    return r;
  }
  DEVICE_M static U4 fifth_bits(const U4& nibbles, const U4& high, int shift) {
    return U4{nibbles.x | (high.x >> shift & 0x01010101u) << 4, nibbles.y | (high.y >> shift & 0x01010101u) << 4,
              nibbles.z | (high.z >> shift & 0x01010101u) << 4, nibbles.w | (high.w >> shift & 0x01010101u) << 4};
  }
  DEVICE_M static float dot(const Raw& r, const Int8Row& x, int group) {
    const int sub = group & 7, chunk = sub >> 1, at = (group >> 3) * 8 + 2 * chunk;  // the first of two blocks of 32
    U4 low = low_nibbles(r.w), high = high_nibbles(r.w);
    if (FiveBits) {
      low = fifth_bits(low, r.high, 2 * chunk);
      high = fifth_bits(high, r.high, 2 * chunk + 1);
    }
    const int sum0 = dot16(low, x.unit(2 * at + (sub & 1)), 0), sum1 = dot16(high, x.unit(2 * at + 2 + (sub & 1)), 0);
    const F4 x0 = x.blocks[at], x1 = x.blocks[at + 1];
    const F2 s0 = k_scale_min(r.head.y, r.head.z, r.head.w, 2 * chunk), s1 = k_scale_min(r.head.y, r.head.z, r.head.w, 2 * chunk + 1);
    const float scaled = gpu_fma(s1.x * x1.x, (float)sum1, s0.x * x0.x * (float)sum0);
    const float lifted = gpu_fma(s1.y * x1.x, sub & 1 ? x1.w : x1.z, s0.y * x0.x * (sub & 1 ? x0.w : x0.z));
    return gpu_fma(half_to_f32((u16)(r.head.x & 0xffff)), scaled, -half_to_f32((u16)(r.head.x >> 16)) * lifted);
  }
};
typedef WarpK45<false> WarpQ4_K;
typedef WarpK45<true> WarpQ5_K;

/// A group is 8 consecutive l of one half of a block, 32 weights at l, l + 32, l + 64, l + 96, as in FormatQ6_K.
struct WarpQ6_K {
  typedef Int8Row Row;
  struct Raw { U2 low0, low1, high, scales; u16 d; };
  static constexpr int kGroup = 32;
  DEVICE_M static Raw load(WeightView v, u64 row_start, int group) {
    const u64 block = row_start / 256 + (u64)(group >> 3);
    const int half = (group & 7) >> 2, l = (group & 3) * 8;
    const u8* low = v.data + block * 128 + half * 64 + l;
    return Raw{load8(low), load8(low + 32), load8(v.data + v.elements / 2 + block * 64 + half * 32 + l),
               load8(v.data + v.elements / 4 * 3 + block * 16 + half * 8), ((const u16*)(v.data + v.elements / 16 * 13))[block]};
  }
  DEVICE_M static u32 six_bits(u32 low, u32 high, int part) {  // as int8, less 32
    const u32 bits = (low >> (part & 2 ? 4 : 0) & 0x0f0f0f0fu) | (high >> (2 * part) & 0x03030303u) << 4;
    return ((bits | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
  }
  DEVICE_M static float dot(const Raw& r, const Int8Row& x, int group) {
    const int at = (group >> 3) * 8 + ((group & 7) >> 2) * 4, l = group & 3;  // the first of four blocks of 32
    float total = 0;
    UNROLL for (int part = 0; part < 4; part++) {
      const U2 low = part & 1 ? r.low1 : r.low0, xs = x.half_unit(4 * (at + part) + l);
      const int sum = gpu_dp4a(six_bits(low.y, r.high.y, part), xs.y, gpu_dp4a(six_bits(low.x, r.high.x, part), xs.x, 0));
      const u32 scales = part & 2 ? r.scales.y : r.scales.x;
      const int scale = (int)(s8)(u8)(scales >> (16 * (part & 1) + 8 * (l >> 1)));
      total = gpu_fma((float)scale * x.blocks[at + part].x, (float)sum, total);
    }
    return half_to_f32(r.d) * total;
  }
};
