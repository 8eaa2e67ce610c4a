// bf16 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_bf16_1, 256, const GemvArgs a) { gemv<FormatBf16, 1>(a); }
