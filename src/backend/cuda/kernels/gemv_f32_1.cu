// f32 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_f32_1, 256, const GemvArgs a) { gemv<FormatF32, 1>(a); }
