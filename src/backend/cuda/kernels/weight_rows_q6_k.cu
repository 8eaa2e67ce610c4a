// Rows of a q6_k weight as f32 or bf16: see weight_rows.h.
#include "backend/cuda/kernels/weight_rows.h"

WEIGHT_ROWS(q6_k, FormatQ6_K)
