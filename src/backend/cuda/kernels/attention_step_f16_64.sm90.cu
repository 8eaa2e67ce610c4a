#include "backend/cuda/kernels/attention_step.h"

KERNEL_TOGETHER(attention_step_f16_64, 256, 3, const AttentionStepArgs p) {
  DYN_SHARED(u8, memory);
  attention_step<64, kKvF16>(p, memory);
}
