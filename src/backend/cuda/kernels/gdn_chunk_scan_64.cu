// Head dimension 64: see gdn_chunk_scan.h.
#include "backend/cuda/kernels/gdn_chunk_scan.h"

KERNEL(gdn_chunk_scan_64, 256, const GdnChunkArgs p) { gdn_chunk_scan<64, false>(p); }
