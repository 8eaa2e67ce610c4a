// Bytes of every block type, as GGUF files hold them: the layouts are the format's, described from the `gguf`
// Python package and ggml's public block structs. Structs have alignment 1 (arrays of bytes only), so that a
// pointer into a mapping can be used wherever it falls. Half-precision scales are little-endian f16 read with
// load_f16.
//
// Notation: x[i] is the i-th of the block's values; q its integer; d, m scales; lo/hi the low/high nibble of
// a byte.
#pragma once

#include <cstdint>

#include "base/half.h"

namespace heirloom {

struct Half {
  std::uint8_t bytes[2];
};
inline std::uint16_t half_bits(Half half) {
  return static_cast<std::uint16_t>(half.bytes[0] | static_cast<unsigned>(half.bytes[1]) << 8);
}
inline float load_f16(Half half) {
  return f16_to_f32(half_bits(half));
}
inline Half store_f16(float value) {
  const std::uint16_t bits = f32_to_f16(value);
  return {{static_cast<std::uint8_t>(bits & 0xff), static_cast<std::uint8_t>(bits >> 8)}};
}

// ---- 32 values a block. Nibble order: byte j has q[j] in its low and q[j + 16] in its high nibble. ----

/// x = d (q - 8), q in 0..15.
struct BlockQ4_0 {
  Half d;
  std::uint8_t qs[16];
};
/// x = d q + m, q in 0..15.
struct BlockQ4_1 {
  Half d, m;
  std::uint8_t qs[16];
};
/// x = d (q - 16), q in 0..31; bit i of the little-endian qh is the fifth bit of q[i].
struct BlockQ5_0 {
  Half d;
  std::uint8_t qh[4];
  std::uint8_t qs[16];
};
/// x = d q + m, q in 0..31, bits as in Q5_0.
struct BlockQ5_1 {
  Half d, m;
  std::uint8_t qh[4];
  std::uint8_t qs[16];
};
/// x = d q, q signed.
struct BlockQ8_0 {
  Half d;
  std::int8_t qs[32];
};
/// x = d kIq4Values[q].
struct BlockIQ4_NL {
  Half d;
  std::uint8_t qs[16];
};
/// x = 2^(e - 128) kMxfp4Values[q]: e is the OCP shared exponent (E8M0), the values are twice E2M1's.
struct BlockMXFP4 {
  std::uint8_t e;
  std::uint8_t qs[16];
};

// ---- 256 values a super-block. ----

/// 16 groups of 16: x = d sc q - dmin m with sc, m = low, high nibble of scales[group]; q in 0..3. The 128
/// values of half h lie in qs[32 h ..]: value 32 s + l of the half is bits 2 s, 2 s + 1 of byte l.
struct BlockQ2_K {
  std::uint8_t scales[16];
  std::uint8_t qs[64];
  Half d, dmin;
};
/// 16 groups of 16: x = d (sc - 32) q, q in -4..3: two low bits in qs as in Q2_K, and minus 4 where bit (i /
/// 32) of hmask[i % 32] is clear. The 6-bit sc of group g: low nibbles of scales[0..7] hold groups 0..7, high
/// nibbles groups 8..15; their upper two bits are bits 2 (g / 4), 2 (g / 4) + 1 of scales[8 + g % 4].
struct BlockQ3_K {
  std::uint8_t hmask[32];
  std::uint8_t qs[64];
  std::uint8_t scales[12];
  Half d;
};
/// 8 groups of 32: x = d sc q - dmin m, q in 0..15. Group pair p (groups 2 p, 2 p + 1) lies in qs[32 p ..]:
/// low nibbles are the even group. 6-bit sc and m: groups 0..3 in the low 6 bits of scales[g] and scales[4 +
/// g]; groups 4..7 have their low nibbles in the nibbles of scales[4 + g] (sc low, m high) and their upper
/// two bits in the top of scales[g - 4], scales[g].
struct BlockQ4_K {
  Half d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qs[128];
};
/// As Q4_K with q in 0..31: bit g of qh[l] is the fifth bit of value l of group g.
struct BlockQ5_K {
  Half d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qh[32];
  std::uint8_t qs[128];
};
/// 16 groups of 16: x = d sc (q - 32), q in 0..63. The 128 values of half h: value 32 s + l has its low
/// nibble in ql[64 h + 32 (s % 2) + l] (low nibble for s < 2, high else) and bits 4..5 in bits 2 s, 2 s + 1
/// of qh[32 h + l].
struct BlockQ6_K {
  std::uint8_t ql[128];
  std::uint8_t qh[64];
  std::int8_t scales[16];
  Half d;
};
/// 8 groups of 32: x = d (sc - 32) kIq4Values[q]; each group's 16 bytes in the nibble order of the 32-value
/// blocks. sc: low nibbles in scales_l (even group low), upper two bits in bits 2 g, 2 g + 1 of the
/// little-endian scales_h.
struct BlockIQ4_XS {
  Half d;
  std::uint8_t scales_h[2];
  std::uint8_t scales_l[4];
  std::uint8_t qs[128];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 &&
              sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_XS) == 136);
static_assert(alignof(BlockQ4_K) == 1 && alignof(BlockQ6_K) == 1);

/// The non-linear 4-bit code book of the IQ4 types.
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
/// Twice the E2M1 values of the OCP Microscaling specification.
inline constexpr std::int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Scale and minimum of group `g` (0..7) of Q4_K and Q5_K, each 0..63.
struct ScaleMin {
  std::uint8_t scale, min;
};
inline ScaleMin unpack_scale_min(const std::uint8_t scales[12], int g) {
  if (g < 4)
    return {static_cast<std::uint8_t>(scales[g] & 63), static_cast<std::uint8_t>(scales[4 + g] & 63)};
  return {static_cast<std::uint8_t>((scales[4 + g] & 15) | ((scales[g - 4] >> 6) << 4)),
          static_cast<std::uint8_t>((scales[4 + g] >> 4) | ((scales[g] >> 6) << 4))};
}

/// 2^(e - 128), the block scale of MXFP4 over doubled values; denormal for e < 2, exact.
inline float mxfp4_scale(std::uint8_t e) {
  const std::uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23;
  return std::bit_cast<float>(bits);
}

}  // namespace heirloom
