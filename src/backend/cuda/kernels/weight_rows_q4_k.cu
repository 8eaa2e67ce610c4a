// Rows of a q4_k weight as f32 or bf16: see weight_rows.h.
#include "backend/cuda/kernels/weight_rows.h"

WEIGHT_ROWS(q4_k, FormatQ4_K)
