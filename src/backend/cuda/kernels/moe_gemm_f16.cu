// Grouped expert product for f16 weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(f16, FormatF16)
