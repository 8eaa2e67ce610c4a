// q8_0 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_q8_0_4, Q8_0, 4)
