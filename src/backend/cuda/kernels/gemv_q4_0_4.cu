// q4_0 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q4_0_4, Q4_0, 4)
