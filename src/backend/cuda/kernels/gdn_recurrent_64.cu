// Head dimension 64: see gdn_recurrent.h.
#include "backend/cuda/kernels/gdn_recurrent.h"

KERNEL(gdn_recurrent_64, 256, const GdnArgs p) { gdn_recurrent<64>(p); }
