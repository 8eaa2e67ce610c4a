// The walk over chunks that also writes captured states: see gdn_chunk_scan.h.
#include "backend/cuda/kernels/gdn_chunk_scan.h"

KERNEL(gdn_chunk_capture_32, 256, const GdnChunkArgs p) { gdn_chunk_scan<32, true>(p); }
