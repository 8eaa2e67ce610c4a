#include "backend/cuda/kernels/segment_attention.h"

KERNEL(segment_attention_72_2, 128, SegmentAttentionArgs p) { segment_attention<72, 2>(p); }
