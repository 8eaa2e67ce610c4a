// The scalar tier: plain loops over the packed layout, the specification of the other tiers. It has no FMA, so its sums
// differ from theirs in the last bits.
#include <cmath>
#include <cstring>

#include "backend/cpu/kernels/linear/linear_kernels.h"
#include "base/half.h"

namespace heirloom::cpu::scalar {
namespace {

float load_half(const std::byte* p, int lane) {
  std::uint16_t bits;
  std::memcpy(&bits, p + 2 * lane, 2);
  return f16_to_f32(bits);
}
float load_float(const std::byte* p, int lane) {
  float value;
  std::memcpy(&value, p + 4 * lane, 4);
  return value;
}
float load_brain(const std::byte* p, int lane) {
  std::uint16_t bits;
  std::memcpy(&bits, p + 2 * lane, 2);
  return bf16_to_f32(bits);
}
int byte_at(const std::byte* p, int i) { return static_cast<int>(p[i]); }

int nibble_at(const std::byte* nibbles, int lane, int k) {
  const int byte = byte_at(nibbles, k % 16 / 4 * 64 + lane * 4 + k % 4);
  return k < 16 ? byte & 15 : byte >> 4;
}

// Code k (0..15) of one row of a half of q6_k: see packed_layout.h.
int six_bits_at(const std::byte* bytes, int k) {
  const int group = k / 4, in_group = k % 4;
  if (group < 3) return byte_at(bytes, group * 64 + in_group) & 63;
  std::uint32_t word = 0;
  for (int g = 0; g < 3; ++g) {
    const int first = g * 64 + in_group / 2 * 2;
    word ^= static_cast<std::uint32_t>(byte_at(bytes, first) | byte_at(bytes, first + 1) << 8) >> (2 * g + 2);
  }
  return static_cast<int>(word >> (in_group % 2 * 8) & 63);
}

// Each format: values of k in a block, bytes of a block, and accumulate() of one block of one lane.
struct Q4_0 {
  static constexpr PackedType kType = PackedType::q4_0;
  static float accumulate(const std::byte* block, int lane, const ActBlock* x, std::ptrdiff_t, float acc) {
    std::int32_t dot = x->neg8;
    for (int k = 0; k < kBlock; ++k) dot += nibble_at(block + 32, lane, k) * x->q[k];
    return acc + load_half(block, lane) * x->scale * static_cast<float>(dot);
  }
};

std::int32_t dot_bytes(const std::byte* codes, int lane, const ActBlock& x) {
  std::int32_t dot = x.neg128;
  for (int k = 0; k < kBlock; ++k) dot += byte_at(codes, k / 4 * 64 + lane * 4 + k % 4) * x.q[k];
  return dot;
}
struct Q8_0 {
  static constexpr PackedType kType = PackedType::q8_0;
  static float accumulate(const std::byte* block, int lane, const ActBlock* x, std::ptrdiff_t, float acc) {
    return acc + load_half(block, lane) * x->scale * static_cast<float>(dot_bytes(block + 32, lane, *x));
  }
};
struct Q8_X {
  static constexpr PackedType kType = PackedType::q8_x;
  static float accumulate(const std::byte* block, int lane, const ActBlock* x, std::ptrdiff_t, float acc) {
    acc += load_float(block, lane) * x->scale * static_cast<float>(dot_bytes(block + 128, lane, *x));
    return acc + load_float(block + 64, lane) * x->scaled_sum;
  }
};

template <bool kFive>
struct Q45_K {
  static constexpr PackedType kType = kFive ? PackedType::q5_k : PackedType::q4_k;
  static float accumulate(const std::byte* block, int lane, const ActBlock* x, std::ptrdiff_t x_step, float acc) {
    const float d = load_half(block, lane);
    const float dmin = load_half(block + 32, lane);
    float scaled = 0.0f, mins = 0.0f;
    for (int g = 0; g < 8; ++g) {
      const std::byte* sub = block + kHeadBytesQ4K + g * (kFive ? kSubBlockBytesQ5K : kSubBlockBytesQ4K);
      const ActBlock& act = *reinterpret_cast<const ActBlock*>(reinterpret_cast<const std::byte*>(x) + g * x_step);
      std::int32_t dot = 0;
      for (int k = 0; k < kBlock; ++k) {
        int code = nibble_at(sub + 32, lane, k);
        if (kFive) code |= ((byte_at(sub, 288 + lane * 4 + k % 4) >> (k / 4)) & 1) << 4;
        dot += code * act.q[k];
      }
      scaled += act.scale * static_cast<float>(byte_at(sub, lane) * dot);
      mins += act.scaled_sum * static_cast<float>(byte_at(sub, 16 + lane));
    }
    return acc + d * scaled - dmin * mins;
  }
};

struct Q6_K {
  static constexpr PackedType kType = PackedType::q6_k;
  static float accumulate(const std::byte* block, int lane, const ActBlock* x, std::ptrdiff_t x_step, float acc) {
    const float d = load_half(block, lane);
    float scaled = 0.0f;
    for (int s = 0; s < 8; ++s) {
      const std::byte* sub = block + kHeadBytesQ6K + s * kSubBlockBytesQ6K;
      const ActBlock& act = *reinterpret_cast<const ActBlock*>(reinterpret_cast<const std::byte*>(x) + s * x_step);
      // Both products and their sum stay below 2^24: exact in float too, which is how the SIMD tiers compute them.
      std::int32_t sum = 0;
      for (int half = 0; half < 2; ++half) {
        std::int32_t dot = act.neg32[half];
        for (int k = 16 * half; k < 16 * half + 16; ++k) {
          dot += six_bits_at(sub + 32 + half * 192 + lane * 4, k % 16) * act.q[k];
        }
        sum += dot * static_cast<std::int8_t>(sub[half * 16 + lane]);
      }
      scaled += act.scale * static_cast<float>(sum);
    }
    return acc + d * scaled;
  }
};

template <class Format>
void integer_panel(const std::byte* panel, const std::byte*, std::int64_t k, const void* x, std::ptrdiff_t x_step, int rows, float* out,
                   std::ptrdiff_t out_stride) {
  constexpr int kType = static_cast<int>(Format::kType);
  constexpr int kRecords = kBlockOf[kType] / kBlock;
  const std::int64_t blocks = k / kBlockOf[kType];
  for (int r = 0; r < rows; ++r) {
    for (int lane = 0; lane < kPanelRows; ++lane) {
      float acc = 0.0f;
      for (std::int64_t b = 0; b < blocks; ++b) {
        const auto* records = static_cast<const std::byte*>(x) + b * kRecords * x_step;
        acc = Format::accumulate(panel + b * kBlockBytesOf[kType], lane, reinterpret_cast<const ActBlock*>(records) + r, x_step, acc);
      }
      out[r * out_stride + lane] = acc;
    }
  }
}

template <float (*load)(const std::byte*, int), int kBytes>
void float_panel(const std::byte* panel, const std::byte*, std::int64_t k, const void* x, std::ptrdiff_t x_step, int rows, float* out,
                 std::ptrdiff_t out_stride) {
  for (int r = 0; r < rows; ++r) {
    float acc[kPanelRows] = {};
    for (std::int64_t i = 0; i < k; ++i) {
      const float value = reinterpret_cast<const float*>(static_cast<const std::byte*>(x) + i * x_step)[r];
      for (int lane = 0; lane < kPanelRows; ++lane) acc[lane] += value * load(panel + i * kPanelRows * kBytes, lane);
    }
    for (int lane = 0; lane < kPanelRows; ++lane) out[r * out_stride + lane] = acc[lane];
  }
}

void quantize_row(const float* x, std::int64_t k, ActBlock* out, std::ptrdiff_t step) {
  for (std::int64_t b = 0; b < k / kBlock; ++b, x += kBlock, out += step) {
    float most = 0.0f;
    for (int i = 0; i < kBlock; ++i) most = std::fmax(most, std::fabs(x[i]));
    // Below 2^-100 the reciprocal would leave float's range; such a block is zero for every purpose.
    const float inverse = most < 0x1p-100f ? 0.0f : 127.0f / most;
    std::int32_t sums[2] = {0, 0};
    for (int i = 0; i < kBlock; ++i) {
      const auto code = static_cast<std::int32_t>(std::lrint(x[i] * inverse));
      out->q[i] = static_cast<std::int8_t>(code);
      sums[i / 16] += code;
    }
    const std::int32_t sum = sums[0] + sums[1];
    out->scale = inverse == 0.0f ? 0.0f : most / 127.0f;
    out->scaled_sum = out->scale * static_cast<float>(sum);
    out->neg8 = -8 * sum;
    out->neg128 = -128 * sum;
    out->neg32[0] = -32 * sums[0];
    out->neg32[1] = -32 * sums[1];
    out->pair_offset[0] = out->pair_offset[1] = 0;
  }
}

}  // namespace

void fill_linear_kernels(LinearKernels& table) {
  table.quantize_row = quantize_row;
  table.panel[static_cast<int>(PackedType::q4_0)] = integer_panel<Q4_0>;
  table.panel[static_cast<int>(PackedType::q8_0)] = integer_panel<Q8_0>;
  table.panel[static_cast<int>(PackedType::q8_x)] = integer_panel<Q8_X>;
  table.panel[static_cast<int>(PackedType::q4_k)] = integer_panel<Q45_K<false>>;
  table.panel[static_cast<int>(PackedType::q5_k)] = integer_panel<Q45_K<true>>;
  table.panel[static_cast<int>(PackedType::q6_k)] = integer_panel<Q6_K>;
  table.panel[static_cast<int>(PackedType::f32)] = float_panel<load_float, 4>;
  table.panel[static_cast<int>(PackedType::f16)] = float_panel<load_half, 2>;
  table.panel[static_cast<int>(PackedType::bf16)] = float_panel<load_brain, 2>;
}

}  // namespace heirloom::cpu::scalar
