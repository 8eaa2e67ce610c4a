// Experts of q6_k on tensor cores, 64 pairs a tile: see moe_mma.h.
#include "backend/cuda/kernels/moe_mma.h"

MOE_MMA(q6_k, FormatQ6_K, 64)
