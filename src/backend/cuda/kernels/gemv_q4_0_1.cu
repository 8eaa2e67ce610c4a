// q4_0 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_q4_0_1, 256, const GemvArgs a) { gemv<FormatQ4_0, 1>(a); }
