// Grouped expert product for q6_k weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(q6_k, FormatQ6_K)
