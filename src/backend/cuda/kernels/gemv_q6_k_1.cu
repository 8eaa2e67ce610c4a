// q6_k weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q6_k_1, Q6_K, 1)
