// Head dimension 64: see gdn_chunk_output.h.
#include "backend/cuda/kernels/gdn_chunk_output.h"

KERNEL_TOGETHER(gdn_chunk_output_64, 256, 2, const GdnChunkArgs p) { gdn_chunk_output<64>(p); }
