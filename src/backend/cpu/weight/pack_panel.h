// From rows of a file's blocks to one panel of the packed layout, and back to one row of floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/weight/packed_layout.h"
#include "base/dtype.h"

namespace heirloom::cpu {

/// A row of q8_x blocks between a file's type and the panel: w = scale * (code - 128) + min.
struct RowBlockQ8X {
  float scale, min;
  std::uint8_t codes[kBlock];
};

/// The packed type that serves a file's type; throws Error{bad_file} for types that hold no weights.
PackedType packed_type_of(DType type);

/// Bytes of one row of `cols` in the row form that pack_panel reads for `type`: the file's own blocks, or RowBlockQ8X.
std::uint64_t packed_row_bytes(PackedType type, std::int64_t cols);

/// True if the file's rows are in that form already.
bool is_packable_as_is(DType type);

/// Converts a row of a type that is not (q4_1, q5_0, ...) into the row form of packed_type_of(type).
void convert_row(DType type, const std::byte* src, std::byte* dst, std::int64_t cols);

/// Writes panel_bytes bytes. rows[r] points to the r-th of 16 rows in row form; a row of zero bytes is a row of zeros.
void pack_panel(PackedType type, const std::byte* const rows[kPanelRows], std::int64_t cols, std::byte* panel);

/// Dequantises row `lane` (0..15) of a panel.
void unpack_row(PackedType type, const std::byte* panel, int lane, std::int64_t cols, float* out);

}  // namespace heirloom::cpu
