// q5_k weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q5_k_1, Q5_K, 1)
