// Rows of a q8_0 weight as f32 or bf16: see weight_rows.h.
#include "backend/cuda/kernels/weight_rows.h"

WEIGHT_ROWS(q8_0, FormatQ8_0)
