// f16 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_f16_1, F16, 1)
