// q5_k weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q5_k_4, Q5_K, 4)
