#include "backend/cuda/kernels/ffn_layer.h"

KERNEL_TOGETHER(ffn_layer_q4_0, kLayerThreads, 2, const FfnLayerArgs p) {
  DYN_SHARED(u8, memory);
  ffn_layer<WarpQ4_0>(p, memory);
}
