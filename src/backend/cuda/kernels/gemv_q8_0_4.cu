// q8_0 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_q8_0_4, 256, const GemvArgs a) { gemv<FormatQ8_0, 4>(a); }
