#include "backend/cuda/kernels/segment_attention.h"

KERNEL(segment_attention_64_2, 128, SegmentAttentionArgs p) { segment_attention<64, 2>(p); }
