#include "backend/cuda/kernels/attention_out.h"

KERNEL_TOGETHER(attention_out_q8_0, kLayerThreads, 2, const AttentionOutArgs p) {
  DYN_SHARED(u8, memory);
  attention_out<WarpQ8_0>(p, memory);
}
