// q4_k weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_q4_k_1, 256, const GemvArgs a) { gemv<FormatQ4_K, 1>(a); }
