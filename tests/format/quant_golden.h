// The golden kit's quant.safetensors opened for the quantisation tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "support/golden.h"

namespace heirloom::test {

inline std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

/// Equal bits, or both NaN (payloads depend on the CPU's operand order).
inline bool same_float(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace heirloom::test
