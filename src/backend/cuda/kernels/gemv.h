// y[m][n] = x[m][k] * W[n][k]^T for few rows (decode), and GEMV(type, Format): the kernels of one weight type.
#pragma once

#if GPU_TIER >= 80
#include "backend/cuda/kernels/gemv_warp.h"
#define GEMV_FORMAT(type) Warp##type
#define GEMV_MEMORY u8
#else
#include "backend/cuda/kernels/gemv_team.h"
#define GEMV_FORMAT(type) Format##type
#define GEMV_MEMORY F4
#endif

// name: gemv_<type>_<rows>
#define GEMV(name, type, rows)                                \
  KERNEL(name, 256, const GemvArgs a) {                       \
    DYN_SHARED(GEMV_MEMORY, memory);                          \
    SHARED GemvShared<rows> shared;                           \
    gemv<GEMV_FORMAT(type), rows>(a, memory, shared); \
  }
