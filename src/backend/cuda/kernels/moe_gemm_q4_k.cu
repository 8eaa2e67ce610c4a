// Grouped expert product for q4_k weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(q4_k, FormatQ4_K)
