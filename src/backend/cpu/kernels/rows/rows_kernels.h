// The kernel of one tier that finds a row's largest element: declarations only, ISA files include this.
#pragma once

#include <cstdint>

namespace heirloom::cpu {

/// The largest of n floats (-infinity for n = 0; a NaN may or may not be returned).
using LargestKernel = float (*)(const float* x, std::int64_t n) noexcept;

namespace scalar { float largest_of(const float* x, std::int64_t n) noexcept; }
namespace ssse3 { float largest_of(const float* x, std::int64_t n) noexcept; }
namespace avx2 { float largest_of(const float* x, std::int64_t n) noexcept; }
namespace avx512 { float largest_of(const float* x, std::int64_t n) noexcept; }

}  // namespace heirloom::cpu
