// Experts of q4_0 on tensor cores, 64 pairs a tile: see moe_mma.h.
#include "backend/cuda/kernels/moe_mma.h"

MOE_MMA(q4_0, FormatQ4_0, 64)
