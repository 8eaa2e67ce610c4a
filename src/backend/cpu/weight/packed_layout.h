// The one packed layout of weights that every CPU tier reads, and the activation records that go with it. Plain constants
// and structs only: ISA files include this header.
//
// A weight is cut into panels of 16 output rows (the last panel of a matrix is padded with zeros); panels follow each other,
// expert by expert. Inside a panel k ascends, in blocks of 32 (256 for K-quants). The codes of a block come in k-groups of 4:
// k-group g holds, for each of the 16 rows, the 4 bytes of k = 4g .. 4g+3. That is 64 bytes: one zmm register as vpdpbusd
// wants it, and one row of an AMX B tile (Intel SDM vol. 2, VPDPBUSD and TDPBUSD). 4-bit codes share bytes: byte j of nibble
// vector h (0..3) holds k-group h in its low and k-group h + 4 in its high half, which is the order of GGUF's Q4_0 too, so
// packing only moves bytes.
//
//   q4_0, 288 bytes a block:   16 f16 scale | 4 x 64 nibbles                    w = scale * (code - 8)
//   q8_0, 544 bytes a block:   16 f16 scale | 8 x 64 codes (value + 128)        w = scale * (code - 128)
//   q8_x, 640 bytes a block:   16 f32 scale | 16 f32 min | 8 x 64 codes         w = scale * (code - 128) + min
//   q4_k, 2368 bytes a super-block: 16 f16 d | 16 f16 dmin | 8 x { 16 u8 sc | 16 u8 m | 4 x 64 nibbles }
//                                                                              w = (d sc) code - (dmin m)
//   q5_k, 2880 bytes: as q4_k, each sub-block followed by 64 bytes of fifth bits: bit g of byte j belongs to k-group g
//   q6_k, 3360 bytes a super-block: 16 f16 d | 8 x { 16 i8 scale of k < 16 | 16 i8 scale of k >= 16 | 2 x 3 x 64 bytes }
//                                                                              w = (d scale) (code - 32)
//       Three bytes carry the four 6-bit codes of a half's k-groups: bytes A, B, C hold those of the first three groups in
//       their low six bits, and the fourth is (A >> 2 ^ B >> 4 ^ C >> 6) & 63, shifted as 16-bit words (pairs of bytes, low
//       one first). The top two bits of each byte are chosen to make that true, so that nothing but the result needs a mask:
//       9 operations for 64 codes instead of 17 for nibbles and two-bit codes apart.
//   f32, f16, bf16:            [k][16] in the file's type
//
// q4_0, q8_0 and q6_k keep the file's size; q4_k and q5_k grow by 3 % because their 6-bit scales become bytes.
#pragma once

#include <cstdint>

namespace heirloom::cpu {

/// How a weight is stored, one kernel each.
enum class PackedType : std::uint8_t { q4_0, q8_0, q8_x, q4_k, q5_k, q6_k, f32, f16, bf16 };
inline constexpr int kNumPackedTypes = 9;

inline constexpr int kPanelRows = 16;
inline constexpr int kBlock = 32;        // k of one activation record
inline constexpr int kSuperBlock = 256;  // k of a K-quant block

inline constexpr int kSubBlockBytesQ4K = 32 + 256;
inline constexpr int kSubBlockBytesQ5K = 32 + 256 + 64;
inline constexpr int kSubBlockBytesQ6K = 32 + 2 * 3 * 64;
inline constexpr int kHeadBytesQ4K = 64;  // d and dmin; q5_k likewise
inline constexpr int kHeadBytesQ6K = 32;  // d

/// Values of k in one block of the type, and the bytes of that block in a panel.
inline constexpr int kBlockOf[kNumPackedTypes] = {32, 32, 32, 256, 256, 256, 1, 1, 1};
inline constexpr int kBlockBytesOf[kNumPackedTypes] = {
    288, 544, 640, kHeadBytesQ4K + 8 * kSubBlockBytesQ4K, kHeadBytesQ4K + 8 * kSubBlockBytesQ5K,
    kHeadBytesQ6K + 8 * kSubBlockBytesQ6K, 64, 32, 32};

/// 32 activations of a row as 8-bit codes with all that a kernel wants to know about them: one cache line.
/// scale = max |x| / 127; codes = x * (127 / max |x|) rounded to nearest even. The offsets cancel the codes' bias in
/// the weights: sum((c - 8) x) = sum(c x) + neg8.
struct alignas(64) ActBlock {
  std::int8_t q[kBlock];
  float scale;
  float scaled_sum;          // scale * sum(q), for types with a min
  std::int32_t neg8;         // -8 * sum(q)
  std::int32_t neg128;       // -128 * sum(q)
  std::int32_t neg32[2];     // -32 * sum of the codes of each half
  std::int32_t pair_offset[2];  // for the ssse3 tier's q6_k (super_blocks_ssse3.h); 0 from the others
};
static_assert(sizeof(ActBlock) == 64);

}  // namespace heirloom::cpu
