// Grouped expert product for q5_k weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(q5_k, FormatQ5_K)
