// f32 weights times one row: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_f32_1, F32, 1)
