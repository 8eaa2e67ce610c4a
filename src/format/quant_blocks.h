// Weight types to float32 and back, portable and exact: what a GGUF's bytes mean. The fast kernels of the backends have
// their own code and are tested against this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace heirloom {

/// True for the types that dequantize_row reads: f32, f16, bf16 and every block type.
bool can_dequantize(DType type);

/// Decodes `n` values. `src` has row_bytes(type, n) bytes at any alignment; n is a multiple of the block size (CHECKed).
/// Bit-exact with the `gguf` Python package. Throws Error{bad_file} for a type that holds no weights (i32, ...).
void dequantize_row(DType type, const std::byte* src, float* dst, std::size_t n);

}  // namespace heirloom
