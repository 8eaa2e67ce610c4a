// f16 cache, up to 8 query heads a block: see attention_decode.h.
#include "backend/cuda/kernels/attention_decode.h"

KERNEL(attention_decode_f16_8, 256, const AttentionDecodeArgs p) { attention_decode<8, kKvF16>(p); }
