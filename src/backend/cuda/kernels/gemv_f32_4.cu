// f32 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_f32_4, 256, const GemvArgs a) { gemv<FormatF32, 4>(a); }
