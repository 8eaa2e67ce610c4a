#include "backend/cpu/weight/pack_panel.h"

#include <array>
#include <cstring>

#include "base/block_layouts.h"
#include "base/check.h"

namespace heirloom::cpu {
namespace {

std::uint32_t load32(const void* p) {
  std::uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
void store32(void* p, std::uint32_t v) { std::memcpy(p, &v, 4); }

constexpr std::uint32_t kLow = 0x0f0f0f0fu;

// ---- rows to panel: four codes (one 32-bit word) at a time ----

void pack_q4_0(const std::byte* const* rows, std::int64_t blocks, std::byte* out) {
  for (std::int64_t b = 0; b < blocks; ++b, out += kBlockBytesOf[0]) {
    for (int r = 0; r < kPanelRows; ++r) {
      const std::byte* src = rows[r] + b * static_cast<std::int64_t>(sizeof(BlockQ4_0));
      std::memcpy(out + 2 * r, src, 2);
      for (int h = 0; h < 4; ++h) std::memcpy(out + 32 + h * 64 + r * 4, src + 2 + h * 4, 4);
    }
  }
}

void pack_q8_0(const std::byte* const* rows, std::int64_t blocks, std::byte* out) {
  for (std::int64_t b = 0; b < blocks; ++b, out += kBlockBytesOf[1]) {
    for (int r = 0; r < kPanelRows; ++r) {
      const std::byte* src = rows[r] + b * static_cast<std::int64_t>(sizeof(BlockQ8_0));
      std::memcpy(out + 2 * r, src, 2);
      for (int g = 0; g < 8; ++g) store32(out + 32 + g * 64 + r * 4, load32(src + 2 + g * 4) ^ 0x80808080u);
    }
  }
}

void pack_q8_x(const std::byte* const* rows, std::int64_t blocks, std::byte* out) {
  for (std::int64_t b = 0; b < blocks; ++b, out += kBlockBytesOf[2]) {
    for (int r = 0; r < kPanelRows; ++r) {
      const std::byte* src = rows[r] + b * static_cast<std::int64_t>(sizeof(RowBlockQ8X));
      std::memcpy(out + 4 * r, src, 4);
      std::memcpy(out + 64 + 4 * r, src + 4, 4);
      for (int g = 0; g < 8; ++g) std::memcpy(out + 128 + g * 64 + r * 4, src + 8 + g * 4, 4);
    }
  }
}

// One group of Q4_K / Q5_K: scales and nibbles.
void pack_group(const std::uint8_t* scales, const std::uint8_t* qs, int group, int r, std::byte* out) {
  const ScaleMin pair = unpack_scale_min(scales, group);
  out[r] = static_cast<std::byte>(pair.scale);
  out[16 + r] = static_cast<std::byte>(pair.min);
  qs += group / 2 * 32;
  const int shift = group % 2 * 4;
  for (int h = 0; h < 4; ++h) {
    const std::uint32_t low = (load32(qs + h * 4) >> shift) & kLow;
    const std::uint32_t high = (load32(qs + 16 + h * 4) >> shift) & kLow;
    store32(out + 32 + h * 64 + r * 4, low | high << 4);
  }
}

void pack_q4_k(const std::byte* const* rows, std::int64_t blocks, std::byte* out) {
  for (std::int64_t b = 0; b < blocks; ++b, out += kBlockBytesOf[3]) {
    for (int r = 0; r < kPanelRows; ++r) {
      const auto* src = reinterpret_cast<const BlockQ4_K*>(rows[r]) + b;
      std::memcpy(out + 2 * r, &src->d, 2);
      std::memcpy(out + 32 + 2 * r, &src->dmin, 2);
      for (int g = 0; g < 8; ++g) pack_group(src->scales, src->qs, g, r, out + kHeadBytesQ4K + g * kSubBlockBytesQ4K);
    }
  }
}

void pack_q5_k(const std::byte* const* rows, std::int64_t blocks, std::byte* out) {
  for (std::int64_t b = 0; b < blocks; ++b, out += kBlockBytesOf[4]) {
    for (int r = 0; r < kPanelRows; ++r) {
      const auto* src = reinterpret_cast<const BlockQ5_K*>(rows[r]) + b;
      std::memcpy(out + 2 * r, &src->d, 2);
      std::memcpy(out + 32 + 2 * r, &src->dmin, 2);
      for (int g = 0; g < 8; ++g) {
        std::byte* sub = out + kHeadBytesQ4K + g * kSubBlockBytesQ5K;
        pack_group(src->scales, src->qs, g, r, sub);
        std::uint32_t fifth = 0;
        for (int group = 0; group < 8; ++group) fifth |= ((load32(src->qh + group * 4) >> g) & 0x01010101u) << group;
        store32(sub + 288 + r * 4, fifth);
      }
    }
  }
}

// The 16-bit words of v, shifted right.
std::uint32_t words_right(std::uint32_t v, int shift) { return (v >> shift) & (0xffffu >> shift) * 0x10001u; }

// Six-bit codes of four k-groups into the three words of packed_layout.h.
void store_sixes(const std::uint32_t codes[4], std::byte* out) {
  const auto [a, b, c, fourth] = std::array{codes[0], codes[1], codes[2], codes[3]};
  const std::uint32_t top = fourth ^ words_right(a, 2) ^ words_right(b, 4) ^ words_right(c, 6);
  // The three pairs of top bits land on different bits of the fourth code, so each is chosen by itself.
  store32(out, a | (top & 0x30303030u) << 2);
  store32(out + 64, b | (top & 0x0c0c0c0cu) << 4);
  store32(out + 128, c | (top & 0x03030303u) << 6);
}

void pack_q6_k(const std::byte* const* rows, std::int64_t blocks, std::byte* out) {
  for (std::int64_t b = 0; b < blocks; ++b, out += kBlockBytesOf[5]) {
    for (int r = 0; r < kPanelRows; ++r) {
      const auto* src = reinterpret_cast<const BlockQ6_K*>(rows[r]) + b;
      std::memcpy(out + 2 * r, &src->d, 2);
      for (int s = 0; s < 8; ++s) {
        std::byte* sub = out + kHeadBytesQ6K + s * kSubBlockBytesQ6K;
        const int slice = s % 4;
        const std::uint8_t* ql = src->ql + s / 4 * 64 + slice % 2 * 32;
        const std::uint8_t* qh = src->qh + s / 4 * 32;
        const int shift = slice / 2 * 4;
        for (int half = 0; half < 2; ++half) {
          std::memcpy(sub + half * 16 + r, src->scales + 2 * s + half, 1);
          std::uint32_t codes[4];
          for (int g = 0; g < 4; ++g) {
            const int at = half * 16 + g * 4;
            codes[g] = ((load32(ql + at) >> shift) & kLow) | ((load32(qh + at) >> (2 * slice)) & 0x03030303u) << 4;
          }
          store_sixes(codes, sub + 32 + half * 192 + r * 4);
        }
      }
    }
  }
}

template <typename T>
void pack_plain(const std::byte* const* rows, std::int64_t cols, std::byte* out) {
  constexpr std::int64_t kSize = static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t k = 0; k < cols; ++k, out += kPanelRows * kSize) {
    for (int r = 0; r < kPanelRows; ++r) std::memcpy(out + r * kSize, rows[r] + k * kSize, sizeof(T));
  }
}

// ---- panel to row ----

std::uint32_t code4(const std::byte* nibbles, int lane, int k) {
  const auto byte = static_cast<std::uint32_t>(nibbles[k % 16 / 4 * 64 + lane * 4 + k % 4]);
  return k < 16 ? byte & 15u : byte >> 4;
}
float half_at(const std::byte* p, int lane) {
  std::uint16_t bits;
  std::memcpy(&bits, p + 2 * lane, 2);
  return f16_to_f32(bits);
}
float float_at(const std::byte* p, int lane) {
  float v;
  std::memcpy(&v, p + 4 * lane, 4);
  return v;
}
std::uint32_t byte_at(const std::byte* p, int i) { return static_cast<std::uint32_t>(p[i]); }

void unpack_q8(const std::byte* codes, int lane, float scale, float min, float* out) {
  for (int k = 0; k < kBlock; ++k) {
    const int code = static_cast<int>(byte_at(codes, k / 4 * 64 + lane * 4 + k % 4)) - 128;
    out[k] = scale * static_cast<float>(code) + min;
  }
}

void unpack_k45(const std::byte* panel, int lane, bool five, float* out) {
  const float d = half_at(panel, lane);
  const float dmin = half_at(panel + 32, lane);
  for (int g = 0; g < 8; ++g) {
    const std::byte* sub = panel + kHeadBytesQ4K + g * (five ? kSubBlockBytesQ5K : kSubBlockBytesQ4K);
    const float scale = d * static_cast<float>(byte_at(sub, lane));
    const float min = dmin * static_cast<float>(byte_at(sub, 16 + lane));
    for (int k = 0; k < kBlock; ++k) {
      std::uint32_t code = code4(sub + 32, lane, k);
      if (five) code |= ((byte_at(sub, 288 + lane * 4 + k % 4) >> (k / 4)) & 1u) << 4;
      out[g * kBlock + k] = scale * static_cast<float>(code) - min;
    }
  }
}

void unpack_q6_k(const std::byte* panel, int lane, float* out) {
  const float d = half_at(panel, lane);
  for (int s = 0; s < 8; ++s) {
    const std::byte* sub = panel + kHeadBytesQ6K + s * kSubBlockBytesQ6K;
    for (int half = 0; half < 2; ++half) {
      const float scale = d * static_cast<float>(static_cast<std::int8_t>(sub[half * 16 + lane]));
      std::uint32_t codes[4];
      for (int g = 0; g < 3; ++g) codes[g] = load32(sub + 32 + half * 192 + g * 64 + lane * 4);
      codes[3] = words_right(codes[0], 2) ^ words_right(codes[1], 4) ^ words_right(codes[2], 6);
      for (int k = 0; k < 16; ++k) {
        const std::uint32_t code = codes[k / 4] >> (k % 4 * 8) & 63u;
        out[s * kBlock + half * 16 + k] = scale * static_cast<float>(static_cast<int>(code) - 32);
      }
    }
  }
}

// ---- file types without a kernel of their own ----

// Value i (0..31) of a block whose nibbles lie in the order of all 32-value blocks.
int nibble(const std::uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
int fifth_bit(const std::uint8_t qh[4], int i) { return (qh[i / 8] >> (i % 8)) & 1; }

template <typename Code>
void fill_q8_x(RowBlockQ8X* dst, float scale, float min, const Code& code) {
  dst->scale = scale;
  dst->min = min;
  for (int i = 0; i < kBlock; ++i) dst->codes[i] = static_cast<std::uint8_t>(code(i) + 128);
}

void convert_q3_k(const BlockQ3_K& src, BlockQ6_K& dst) {
  std::memset(&dst, 0, sizeof(dst));
  dst.d = src.d;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? src.scales[g] & 15 : src.scales[g - 8] >> 4;
    dst.scales[g] = static_cast<std::int8_t>((low | ((src.scales[8 + g % 4] >> (2 * (g / 4))) & 3) << 4) - 32);
  }
  for (int i = 0; i < kSuperBlock; ++i) {
    const int half = i / 128;
    const int slice = i % 128 / 32;
    const int l = i % 32;
    const int low = (src.qs[half * 32 + l] >> (2 * slice)) & 3;
    const int q = low - ((src.hmask[l] >> (i / 32)) & 1 ? 0 : 4) + 32;
    std::uint8_t& ql = dst.ql[half * 64 + slice % 2 * 32 + l];
    std::uint8_t& qh = dst.qh[half * 32 + l];
    ql = static_cast<std::uint8_t>(ql | (q & 15) << (slice / 2 * 4));
    qh = static_cast<std::uint8_t>(qh | (q >> 4) << (2 * slice));
  }
}

void convert_q2_k(const BlockQ2_K& src, std::uint16_t* dst) {
  const float d = load_f16(src.d);
  const float dmin = load_f16(src.dmin);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int scales = src.scales[i / 16];
    const int q = (src.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    dst[i] = f32_to_f16(d * static_cast<float>(scales & 15) * static_cast<float>(q) - dmin * static_cast<float>(scales >> 4));
  }
}

}  // namespace

PackedType packed_type_of(DType type) {
  switch (type) {
    case DType::q4_0: return PackedType::q4_0;
    case DType::q8_0:
    case DType::q5_0:
    case DType::iq4_nl: return PackedType::q8_0;
    case DType::q4_1:
    case DType::q5_1:
    case DType::iq4_xs:
    case DType::mxfp4: return PackedType::q8_x;
    case DType::q4_k: return PackedType::q4_k;
    case DType::q5_k: return PackedType::q5_k;
    case DType::q6_k:
    case DType::q3_k: return PackedType::q6_k;
    case DType::f32:
    case DType::f64: return PackedType::f32;
    case DType::f16:
    case DType::q2_k: return PackedType::f16;
    case DType::bf16: return PackedType::bf16;
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::u8: break;
  }
  fail(ErrorKind::bad_file, "type {} holds no weights; f32, f16, bf16 and the block types do", dtype_name(type));
}

std::uint64_t packed_row_bytes(PackedType type, std::int64_t cols) {
  const auto n = static_cast<std::uint64_t>(cols);
  switch (type) {
    case PackedType::q4_0: return n / 32 * sizeof(BlockQ4_0);
    case PackedType::q8_0: return n / 32 * sizeof(BlockQ8_0);
    case PackedType::q8_x: return n / 32 * sizeof(RowBlockQ8X);
    case PackedType::q4_k: return n / 256 * sizeof(BlockQ4_K);
    case PackedType::q5_k: return n / 256 * sizeof(BlockQ5_K);
    case PackedType::q6_k: return n / 256 * sizeof(BlockQ6_K);
    case PackedType::f32: return n * 4;
    case PackedType::f16:
    case PackedType::bf16: return n * 2;
  }
  return 0;
}

bool is_packable_as_is(DType type) {
  switch (type) {
    case DType::q4_0:
    case DType::q8_0:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::f32:
    case DType::f16:
    case DType::bf16: return true;
    default: return false;
  }
}

void convert_row(DType type, const std::byte* src, std::byte* dst, std::int64_t cols) {
  const std::int64_t blocks = cols / dtype_info(type).block_size;
  for (std::int64_t b = 0; b < blocks; ++b) {
    switch (type) {
      case DType::q5_0: {
        const auto& from = reinterpret_cast<const BlockQ5_0*>(src)[b];
        auto& to = reinterpret_cast<BlockQ8_0*>(dst)[b];
        to.d = from.d;
        for (int i = 0; i < kBlock; ++i) {
          to.qs[i] = static_cast<std::int8_t>((nibble(from.qs, i) | fifth_bit(from.qh, i) << 4) - 16);
        }
        break;
      }
      case DType::iq4_nl: {
        const auto& from = reinterpret_cast<const BlockIQ4_NL*>(src)[b];
        auto& to = reinterpret_cast<BlockQ8_0*>(dst)[b];
        to.d = from.d;
        for (int i = 0; i < kBlock; ++i) to.qs[i] = kIq4Values[nibble(from.qs, i)];
        break;
      }
      case DType::q4_1: {
        const auto& from = reinterpret_cast<const BlockQ4_1*>(src)[b];
        fill_q8_x(reinterpret_cast<RowBlockQ8X*>(dst) + b, load_f16(from.d), load_f16(from.m),
                  [&](int i) { return nibble(from.qs, i); });
        break;
      }
      case DType::q5_1: {
        const auto& from = reinterpret_cast<const BlockQ5_1*>(src)[b];
        fill_q8_x(reinterpret_cast<RowBlockQ8X*>(dst) + b, load_f16(from.d), load_f16(from.m),
                  [&](int i) { return nibble(from.qs, i) | fifth_bit(from.qh, i) << 4; });
        break;
      }
      case DType::mxfp4: {
        const auto& from = reinterpret_cast<const BlockMXFP4*>(src)[b];
        fill_q8_x(reinterpret_cast<RowBlockQ8X*>(dst) + b, mxfp4_scale(from.e), 0.0f,
                  [&](int i) { return kMxfp4Values[nibble(from.qs, i)]; });
        break;
      }
      case DType::iq4_xs: {
        const auto& from = reinterpret_cast<const BlockIQ4_XS*>(src)[b];
        const float d = load_f16(from.d);
        const int high = from.scales_h[0] | from.scales_h[1] << 8;
        for (int g = 0; g < 8; ++g) {
          const int scale = ((from.scales_l[g / 2] >> (g % 2 * 4)) & 15) | ((high >> (2 * g)) & 3) << 4;
          fill_q8_x(reinterpret_cast<RowBlockQ8X*>(dst) + b * 8 + g, d * static_cast<float>(scale - 32), 0.0f,
                    [&](int i) { return kIq4Values[nibble(from.qs + g * 16, i)]; });
        }
        break;
      }
      case DType::q3_k:
        convert_q3_k(reinterpret_cast<const BlockQ3_K*>(src)[b], reinterpret_cast<BlockQ6_K*>(dst)[b]);
        break;
      case DType::q2_k:
        convert_q2_k(reinterpret_cast<const BlockQ2_K*>(src)[b], reinterpret_cast<std::uint16_t*>(dst) + b * kSuperBlock);
        break;
      case DType::f64: {
        double value;
        std::memcpy(&value, src + b * 8, 8);
        reinterpret_cast<float*>(dst)[b] = static_cast<float>(value);
        break;
      }
      default: HEIRLOOM_CHECK(!"a type that is packed as it is");
    }
  }
}

void pack_panel(PackedType type, const std::byte* const rows[kPanelRows], std::int64_t cols, std::byte* panel) {
  switch (type) {
    case PackedType::q4_0: return pack_q4_0(rows, cols / 32, panel);
    case PackedType::q8_0: return pack_q8_0(rows, cols / 32, panel);
    case PackedType::q8_x: return pack_q8_x(rows, cols / 32, panel);
    case PackedType::q4_k: return pack_q4_k(rows, cols / 256, panel);
    case PackedType::q5_k: return pack_q5_k(rows, cols / 256, panel);
    case PackedType::q6_k: return pack_q6_k(rows, cols / 256, panel);
    case PackedType::f32: return pack_plain<float>(rows, cols, panel);
    case PackedType::f16:
    case PackedType::bf16: return pack_plain<std::uint16_t>(rows, cols, panel);
  }
}

void unpack_row(PackedType type, const std::byte* panel, int lane, std::int64_t cols, float* out) {
  const int block = kBlockOf[static_cast<int>(type)];
  const int block_bytes = kBlockBytesOf[static_cast<int>(type)];
  for (std::int64_t k = 0; k < cols; k += block, panel += block_bytes, out += block) {
    switch (type) {
      case PackedType::q4_0: {
        const float scale = half_at(panel, lane);
        for (int i = 0; i < kBlock; ++i) out[i] = scale * static_cast<float>(static_cast<int>(code4(panel + 32, lane, i)) - 8);
        break;
      }
      case PackedType::q8_0: unpack_q8(panel + 32, lane, half_at(panel, lane), 0.0f, out); break;
      case PackedType::q8_x: unpack_q8(panel + 128, lane, float_at(panel, lane), float_at(panel + 64, lane), out); break;
      case PackedType::q4_k: unpack_k45(panel, lane, false, out); break;
      case PackedType::q5_k: unpack_k45(panel, lane, true, out); break;
      case PackedType::q6_k: unpack_q6_k(panel, lane, out); break;
      case PackedType::f32: *out = float_at(panel, lane); break;
      case PackedType::f16: *out = half_at(panel, lane); break;
      case PackedType::bf16: {
        std::uint16_t bits;
        std::memcpy(&bits, panel + 2 * lane, 2);
        *out = bf16_to_f32(bits);
        break;
      }
    }
  }
}

}  // namespace heirloom::cpu
