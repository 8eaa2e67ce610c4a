#include "backend/cuda/kernels/gdn_layer.h"

KERNEL_TOGETHER(gdn_layer_q4_0_128, kLayerThreads, 2, const GdnLayerArgs p) {
  DYN_SHARED(u8, memory);
  gdn_layer<WarpQ4_0, 128>(p, memory);
}
