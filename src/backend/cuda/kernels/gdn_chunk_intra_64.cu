// Head dimension 64: see gdn_chunk_intra.h.
#include "backend/cuda/kernels/gdn_chunk_intra.h"

KERNEL(gdn_chunk_intra_64, 256, const GdnChunkArgs p) { gdn_chunk_intra<64>(p); }
