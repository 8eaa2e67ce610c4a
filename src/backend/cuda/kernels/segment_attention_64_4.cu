#include "backend/cuda/kernels/segment_attention.h"

KERNEL(segment_attention_64_4, 128, SegmentAttentionArgs p) { segment_attention<64, 4>(p); }
