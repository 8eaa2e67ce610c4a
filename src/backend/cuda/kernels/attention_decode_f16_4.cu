// f16 cache, up to 4 query heads a block: see attention_decode.h.
#include "backend/cuda/kernels/attention_decode.h"

KERNEL(attention_decode_f16_4, 256, const AttentionDecodeArgs p) { attention_decode<4, kKvF16>(p); }
