// Experts of q8_0 on tensor cores, 64 pairs a tile: see moe_mma.h.
#include "backend/cuda/kernels/moe_mma.h"

MOE_MMA(q8_0, FormatQ8_0, 64)
