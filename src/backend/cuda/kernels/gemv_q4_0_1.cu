// q4_0 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q4_0_1, Q4_0, 1)
