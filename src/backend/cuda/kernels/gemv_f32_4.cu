// f32 weights times up to four rows at a time: see gemv.h.
#include "backend/cuda/kernels/gemv.h"

GEMV(gemv_f32_4, F32, 4)
