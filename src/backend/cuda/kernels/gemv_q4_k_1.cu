// q4_k weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q4_k_1, Q4_K, 1)
