#include "backend/cuda/kernels/input_rows.h"

KERNEL_TOGETHER(input_rows_f32, kLayerThreads, 2, const InputRowsArgs p) {
  DYN_SHARED(u8, memory);
  input_rows<WarpF32>(p, memory);
}
