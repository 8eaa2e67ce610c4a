#include "backend/cuda/kernels/attention_step.h"

KERNEL_TOGETHER(attention_step_f16_256, 256, 3, const AttentionStepArgs p) {
  DYN_SHARED(u8, memory);
  attention_step<256, kKvF16>(p, memory);
}
