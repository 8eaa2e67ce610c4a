// Experts of bf16 on tensor cores, 128 pairs a tile: see moe_mma.h.
#include "backend/cuda/kernels/moe_mma.h"

MOE_MMA(bf16, FormatBf16, 128)
