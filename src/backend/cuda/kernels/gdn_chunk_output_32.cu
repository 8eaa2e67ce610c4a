// Head dimension 32: see gdn_chunk_output.h.
#include "backend/cuda/kernels/gdn_chunk_output.h"

KERNEL_TOGETHER(gdn_chunk_output_32, 256, 2, const GdnChunkArgs p) { gdn_chunk_output<32>(p); }
