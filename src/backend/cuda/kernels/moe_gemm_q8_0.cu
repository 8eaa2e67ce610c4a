// Grouped expert product for q8_0 weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(q8_0, FormatQ8_0)
