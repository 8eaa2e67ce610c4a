#include "backend/cuda/kernels/segment_attention.h"

KERNEL(segment_attention_72_4, 128, SegmentAttentionArgs p) { segment_attention<72, 4>(p); }
