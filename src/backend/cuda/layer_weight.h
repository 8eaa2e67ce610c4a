// What the launches of one token's kernels ask about weights (cuda_layers.cc, cuda_token.cc): arguments, types and bytes in shared memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/cuda/cuda_weight.h"
#include "backend/cuda/kernels/layer_args.h"

namespace heirloom::cuda {

inline const CudaWeight& cuda_weight(const ops::Weight* weight) { return static_cast<const CudaWeight&>(*weight); }
inline LayerWeight layer_weight(const CudaWeight& weight) { return {static_cast<const unsigned char*>(weight.data), weight.elements}; }

/// The types that these kernels take in shared memory.
inline bool stageable(std::string_view format) { return format == "q8_0" || format == "q4_0"; }
/// Bytes there of a row of k weights of such a type.
inline std::int64_t staged_row_bytes(std::string_view format, std::int64_t k) { return (format == "q8_0" ? k : k / 2) + k / 16; }
/// Bytes there of k activations of 8 bits (Int8Row).
inline std::int64_t int8_row_bytes(std::int64_t k) { return k + k / 2; }

}  // namespace heirloom::cuda
