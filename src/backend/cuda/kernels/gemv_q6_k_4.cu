// q6_k weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q6_k_4, Q6_K, 4)
