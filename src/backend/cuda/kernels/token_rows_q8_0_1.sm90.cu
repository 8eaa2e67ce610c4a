// q8_0 weights, 1 row at a time: see token_rows.h.
#include "backend/cuda/kernels/token_rows.h"

KERNEL_TOGETHER(token_rows_q8_0_1, kTokenThreads, 2, const TokenRowsArgs p) {
  DYN_SHARED(u8, memory);
  token_rows<WarpQ8_0, 1>(p, memory);
}
