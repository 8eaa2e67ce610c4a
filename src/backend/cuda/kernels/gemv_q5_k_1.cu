// q5_k weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_q5_k_1, 256, const GemvArgs a) { gemv<FormatQ5_K, 1>(a); }
