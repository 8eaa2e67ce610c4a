// bf16 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_bf16_4, 256, const GemvArgs a) { gemv<FormatBf16, 4>(a); }
