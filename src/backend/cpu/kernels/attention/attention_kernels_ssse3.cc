// clang-format off: the bodies are written in the vocabulary that comes first.
#include "backend/cpu/kernels/simd/simd_ssse3.h"
#include "backend/cpu/kernels/simd/simd_math.h"
#include "backend/cpu/kernels/attention/attention_body.h"
