#include "backend/cpu/kernels/simd/simd_scalar.h"
#include "backend/cpu/kernels/rows/rows_body.h"
