#include "backend/cuda/kernels/attention_step.h"

KERNEL_TOGETHER(attention_step_bf16_128, 256, 3, const AttentionStepArgs p) {
  DYN_SHARED(u8, memory);
  attention_step<128, kKvBf16>(p, memory);
}
