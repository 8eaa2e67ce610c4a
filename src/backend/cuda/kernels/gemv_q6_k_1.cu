// q6_k weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_q6_k_1, 256, const GemvArgs a) { gemv<FormatQ6_K, 1>(a); }
