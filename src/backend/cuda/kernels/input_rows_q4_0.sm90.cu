#include "backend/cuda/kernels/input_rows.h"

KERNEL_TOGETHER(input_rows_q4_0, kLayerThreads, 2, const InputRowsArgs p) {
  DYN_SHARED(u8, memory);
  input_rows<WarpQ4_0>(p, memory);
}
