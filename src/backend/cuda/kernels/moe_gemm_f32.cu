// Grouped expert product for f32 weights: see moe_gemm.h.
#include "backend/cuda/kernels/moe_gemm.h"

MOE_GEMM(f32, FormatF32)
