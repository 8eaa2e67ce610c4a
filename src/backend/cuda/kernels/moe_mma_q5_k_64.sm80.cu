// Experts of q5_k on tensor cores, 64 pairs a tile: see moe_mma.h.
#include "backend/cuda/kernels/moe_mma.h"

MOE_MMA(q5_k, FormatQ5_K, 64)
