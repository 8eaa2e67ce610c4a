// 8 warps a block: see attention_flash.h.
#include "backend/cuda/kernels/attention_flash.h"

#if GPU_TIER >= 80
KERNEL(attention_flash_8, 256, const AttentionFlashArgs p) { attention_flash<8>(p); }
#endif
