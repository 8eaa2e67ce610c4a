// Rows of a f32 weight as f32 or bf16: see weight_rows.h.
#include "backend/cuda/kernels/weight_rows.h"

WEIGHT_ROWS(f32, FormatF32)
