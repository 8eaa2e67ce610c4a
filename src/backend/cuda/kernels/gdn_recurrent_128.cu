// Head dimension 128: see gdn_recurrent.h.
#include "backend/cuda/kernels/gdn_recurrent.h"

KERNEL(gdn_recurrent_128, 512, const GdnArgs p) { gdn_recurrent<128>(p); }
