// bf16 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_bf16_1, Bf16, 1)
