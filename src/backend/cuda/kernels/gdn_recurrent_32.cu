// Head dimension 32: see gdn_recurrent.h.
#include "backend/cuda/kernels/gdn_recurrent.h"

KERNEL(gdn_recurrent_32, 128, const GdnArgs p) { gdn_recurrent<32>(p); }
