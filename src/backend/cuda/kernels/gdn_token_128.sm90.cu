// Head dimension 128: see gdn_token.h.
#include "backend/cuda/kernels/gdn_token.h"

KERNEL(gdn_token_128, kGdnTokenThreads, const GdnTokenArgs p) {
  SHARED GdnTokenShared shared;
  gdn_token<128>(p, shared);
}
