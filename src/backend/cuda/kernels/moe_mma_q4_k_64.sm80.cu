// Experts of q4_k on tensor cores, 64 pairs a tile: see moe_mma.h.
#include "backend/cuda/kernels/moe_mma.h"

MOE_MMA(q4_k, FormatQ4_K, 64)
