// Head dimension 32: see gdn_chunk_scan.h.
#include "backend/cuda/kernels/gdn_chunk_scan.h"

KERNEL(gdn_chunk_scan_32, 256, const GdnChunkArgs p) { gdn_chunk_scan<32, false>(p); }
