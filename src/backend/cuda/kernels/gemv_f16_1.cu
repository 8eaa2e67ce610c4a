// f16 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_f16_1, 256, const GemvArgs a) { gemv<FormatF16, 1>(a); }
