// Grouped expert product for q4_0 weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(q4_0, FormatQ4_0)
