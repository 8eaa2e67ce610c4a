// Head dimension 64: see gdn_token.h.
#include "backend/cuda/kernels/gdn_token.h"

KERNEL(gdn_token_64, kGdnTokenThreads, const GdnTokenArgs p) {
  SHARED GdnTokenShared shared;
  gdn_token<64>(p, shared);
}
