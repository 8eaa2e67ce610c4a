// bf16 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_bf16_4, Bf16, 4)
