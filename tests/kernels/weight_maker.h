// Random weights in every file type for kernel tests: block bytes with sane scales, and the floats they mean (decoded by
// format/, which has tests of its own against golden data).
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/block_layouts.h"
#include "base/dtype.h"
#include "base/half.h"
#include "format/quant_blocks.h"
#include "ops/backend.h"

namespace heirloom::test {

inline std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& v : out) v = normal(engine);
  return out;
}

/// A weight of one type with random contents.
struct MadeWeight {
  ops::WeightData data;
  std::vector<std::byte> bytes;
  std::vector<float> floats;  // [experts, rows, cols]
};

/// `fill` (0..255): every byte of a block but its float scales, for codes at their ends.
inline MadeWeight make_weight(DType type, std::int64_t experts, std::int64_t rows, std::int64_t cols, unsigned seed, int fill = -1) {
  MadeWeight made;
  const auto values = static_cast<std::size_t>(experts * rows * cols);
  const std::uint64_t bytes_of_row = row_bytes(type, static_cast<std::uint64_t>(cols));
  made.bytes.resize(static_cast<std::size_t>(experts * rows) * bytes_of_row);
  std::mt19937 engine(seed);
  for (auto& b : made.bytes) b = static_cast<std::byte>(fill >= 0 ? static_cast<unsigned>(fill) : engine() & 255u);
  // Random bits make infinite scales: overwrite the scales and keep the codes.
  std::uniform_real_distribution<float> uniform(-0.02f, 0.02f);
  const auto half = [&](Half& h) { h = store_f16(uniform(engine)); };
  const std::size_t blocks = values / dtype_info(type).block_size;
  const auto each = [&](auto* first, auto set) {
    for (std::size_t i = 0; i < blocks; ++i) set(first[i]);
  };
  std::byte* p = made.bytes.data();
  switch (type) {
    case DType::q4_0: each(reinterpret_cast<BlockQ4_0*>(p), [&](auto& b) { half(b.d); }); break;
    case DType::q4_1: each(reinterpret_cast<BlockQ4_1*>(p), [&](auto& b) { half(b.d), half(b.m); }); break;
    case DType::q5_0: each(reinterpret_cast<BlockQ5_0*>(p), [&](auto& b) { half(b.d); }); break;
    case DType::q5_1: each(reinterpret_cast<BlockQ5_1*>(p), [&](auto& b) { half(b.d), half(b.m); }); break;
    case DType::q8_0: each(reinterpret_cast<BlockQ8_0*>(p), [&](auto& b) { half(b.d); }); break;
    case DType::iq4_nl: each(reinterpret_cast<BlockIQ4_NL*>(p), [&](auto& b) { half(b.d); }); break;
    case DType::mxfp4:
      each(reinterpret_cast<BlockMXFP4*>(p), [&](auto& b) { b.e = static_cast<std::uint8_t>(115 + engine() % 12); });
      break;
    case DType::q2_k: each(reinterpret_cast<BlockQ2_K*>(p), [&](auto& b) { half(b.d), half(b.dmin); }); break;
    case DType::q3_k: each(reinterpret_cast<BlockQ3_K*>(p), [&](auto& b) { half(b.d); }); break;
    case DType::q4_k: each(reinterpret_cast<BlockQ4_K*>(p), [&](auto& b) { half(b.d), half(b.dmin); }); break;
    case DType::q5_k: each(reinterpret_cast<BlockQ5_K*>(p), [&](auto& b) { half(b.d), half(b.dmin); }); break;
    case DType::q6_k: each(reinterpret_cast<BlockQ6_K*>(p), [&](auto& b) { half(b.d); }); break;
    case DType::iq4_xs: each(reinterpret_cast<BlockIQ4_XS*>(p), [&](auto& b) { half(b.d); }); break;
    default: {
      const std::vector<float> plain = random_floats(values, seed, 0.05f);
      for (std::size_t i = 0; i < values; ++i) {
        const std::uint16_t brain = f32_to_bf16(plain[i]);
        const std::uint16_t ieee = f32_to_f16(plain[i]);
        if (type == DType::f32) std::memcpy(p + 4 * i, &plain[i], 4);
        if (type == DType::f16) std::memcpy(p + 2 * i, &ieee, 2);
        if (type == DType::bf16) std::memcpy(p + 2 * i, &brain, 2);
      }
    }
  }
  made.floats.resize(values);
  for (std::size_t r = 0; r < static_cast<std::size_t>(experts * rows); ++r) {
    dequantize_row(type, p + r * bytes_of_row, made.floats.data() + r * static_cast<std::size_t>(cols), static_cast<std::size_t>(cols));
  }
  made.data.name = "made." + std::string(dtype_name(type));
  made.data.type = type;
  made.data.experts = experts;
  made.data.rows = rows;
  made.data.cols = cols;
  made.data.slabs = {{p, experts * rows}};
  return made;
}

inline const std::vector<DType>& weight_types() {
  static const std::vector<DType> types{DType::f32,  DType::f16,  DType::bf16, DType::q4_0, DType::q4_1, DType::q5_0,
                                        DType::q5_1, DType::q8_0, DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k,
                                        DType::q6_k, DType::iq4_nl, DType::iq4_xs, DType::mxfp4};
  return types;
}

/// True for the types whose products take x in float32 (q2_k is kept as f16).
inline bool takes_float_x(DType type) { return !is_quantized(type) || type == DType::q2_k; }

/// x as 8-bit activations mean it: per 32 values scale = max |x| / 127, codes rounded to nearest even.
inline std::vector<float> as_8_bit(const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (std::size_t b = 0; b < x.size(); b += 32) {
    float most = 0.0f;
    for (std::size_t i = b; i < b + 32; ++i) most = std::max(most, std::fabs(x[i]));
    if (most == 0.0f) continue;
    for (std::size_t i = b; i < b + 32; ++i) out[i] = std::nearbyint(x[i] * (127.0f / most)) * (most / 127.0f);
  }
  return out;
}

}  // namespace heirloom::test
