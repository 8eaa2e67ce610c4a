#include "backend/cuda/kernels/attention_out.h"

KERNEL_TOGETHER(attention_out_q4_0, kLayerThreads, 2, const AttentionOutArgs p) {
  DYN_SHARED(u8, memory);
  attention_out<WarpQ4_0>(p, memory);
}
