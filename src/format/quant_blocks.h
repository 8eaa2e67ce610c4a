// Weight types to float32 and back, portable and exact: what a GGUF's bytes mean. The fast kernels of the
// backends have their own code and are tested against this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace heirloom {

/// True for the types that dequantize_row reads: f32, f16, bf16 and every block type.
bool can_dequantize(DType type);

/// Decodes `n` values. `src` has row_bytes(type, n) bytes at any alignment; n is a multiple of the block size
/// (CHECKed). Bit-exact with the `gguf` Python package. Throws Error{bad_file} for a type that holds no
/// weights (i32, ...).
void dequantize_row(DType type, const std::byte* src, float* dst, std::size_t n);

/// True for the types that quantize_row writes: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, mxfp4, q4_k,
/// q5_k, q6_k.
bool can_quantize(DType type);

/// Encodes `n` values (a multiple of the block size, CHECKed) into row_bytes(type, n) bytes at any alignment.
/// The plain and 32-value types are byte-identical with the `gguf` Python package; the K-quants are a search
/// of our own for the least squared error. `importance` [n], or nullptr for all ones: non-negative weight of
/// each value's squared error (the mean square of the activation that it multiplies); the K-quants use it,
/// the others have nothing to choose. Throws Error{bad_file} when a block type meets a value that is not
/// finite, or when can_quantize(type) is false. Thread-safe; deterministic on every CPU.
void quantize_row(DType type, const float* src, std::byte* dst, std::size_t n,
                  const float* importance = nullptr);

}  // namespace heirloom
