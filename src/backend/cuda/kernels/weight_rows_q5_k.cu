// Rows of a q5_k weight as f32 or bf16: see weight_rows.h.
#include "backend/cuda/kernels/weight_rows.h"

WEIGHT_ROWS(q5_k, FormatQ5_K)
