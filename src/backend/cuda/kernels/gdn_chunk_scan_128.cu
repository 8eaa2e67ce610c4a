// Head dimension 128: see gdn_chunk_scan.h.
#include "backend/cuda/kernels/gdn_chunk_scan.h"

KERNEL(gdn_chunk_scan_128, 256, const GdnChunkArgs p) { gdn_chunk_scan<128, false>(p); }
