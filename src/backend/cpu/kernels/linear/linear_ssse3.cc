// The ssse3 tier: pmaddubsw and pmaddwd on four rows of a panel at a time, the oldest form of this arithmetic (Core 2,
// 2006). No FMA: its sums equal the scalar tier's. K-quants have kernels of their own (super_blocks_ssse3.h).
// clang-format off: the bodies are written in the vocabulary that comes first.
#include "backend/cpu/kernels/linear/codes_ssse3.h"

#include "backend/cpu/kernels/linear/dot_pairs.h"
#include "backend/cpu/kernels/linear/panel_body.h"
#include "backend/cpu/kernels/linear/quantize_body.h"
#include "backend/cpu/kernels/linear/super_blocks_ssse3.h"

namespace heirloom::cpu::ssse3 {

void fill_linear_kernels(LinearKernels& table) {
  fill_block_panels(table);
  fill_float_panels(table);
  table.panel[static_cast<int>(PackedType::q4_k)] = integer_panel<SuperQ45_K<false>>;
  table.panel[static_cast<int>(PackedType::q5_k)] = integer_panel<SuperQ45_K<true>>;
  table.panel[static_cast<int>(PackedType::q6_k)] = integer_panel<SuperQ6_K>;
  table.quantize_row = quantize_with_offsets;
}

}  // namespace heirloom::cpu::ssse3
