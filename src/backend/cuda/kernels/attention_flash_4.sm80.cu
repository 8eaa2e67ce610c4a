// 4 warps a block: see attention_flash.h.
#include "backend/cuda/kernels/attention_flash.h"

#if GPU_TIER >= 80
KERNEL(attention_flash_4, 128, const AttentionFlashArgs p) { attention_flash<4>(p); }
#endif
