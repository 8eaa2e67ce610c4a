// q5_k weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

KERNEL(gemv_q5_k_4, 256, const GemvArgs a) { gemv<FormatQ5_K, 4>(a); }
