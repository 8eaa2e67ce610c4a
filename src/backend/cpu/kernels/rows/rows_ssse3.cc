#include "backend/cpu/kernels/simd/simd_ssse3.h"
#include "backend/cpu/kernels/rows/rows_body.h"
