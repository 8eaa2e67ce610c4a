// q8_0 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q8_0_1, Q8_0, 1)
