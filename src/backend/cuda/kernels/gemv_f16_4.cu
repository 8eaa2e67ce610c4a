// f16 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_f16_4, 256, const GemvArgs a) { gemv<FormatF16, 4>(a); }
