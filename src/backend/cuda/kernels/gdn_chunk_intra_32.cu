// Head dimension 32: see gdn_chunk_intra.h.
#include "backend/cuda/kernels/gdn_chunk_intra.h"

KERNEL(gdn_chunk_intra_32, 256, const GdnChunkArgs p) { gdn_chunk_intra<32>(p); }
