// q6_k weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_q6_k_4, 256, const GemvArgs a) { gemv<FormatQ6_K, 4>(a); }
