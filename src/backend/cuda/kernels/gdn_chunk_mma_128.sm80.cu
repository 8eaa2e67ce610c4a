// Head dimension 128: see gdn_chunk_mma.h.
#include "backend/cuda/kernels/gdn_chunk_mma.h"

KERNEL(gdn_chunk_mma_128, 256, const GdnChunkArgs p) { gdn_chunk_mma<128>(p); }
