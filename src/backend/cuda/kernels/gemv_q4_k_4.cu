// q4_k weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q4_k_4, Q4_K, 4)
