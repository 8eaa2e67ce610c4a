// Grouped expert product for bf16 weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(bf16, FormatBf16)
