// GELU: x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3), and x erfc(-x/sqrt 2) / 2.
// tanh is written as a sigmoid because 1 + tanh(u) cancels for negative u; erfc is Numerical Recipes' erfcc (section 6.2,
// fractional error 1.2e-7 everywhere).
#pragma once

#include "backend/cuda/kernels/gpu.h"

DEVICE float erfc_nr(float x) {
  const float z = x < 0 ? -x : x, t = 1.0f / gpu_fma(0.5f, z, 1.0f);
  float p = 0.17087277f;
  p = gpu_fma(p, t, -0.82215223f);
  p = gpu_fma(p, t, 1.48851587f);
  p = gpu_fma(p, t, -1.13520398f);
  p = gpu_fma(p, t, 0.27886807f);
  p = gpu_fma(p, t, -0.18628806f);
  p = gpu_fma(p, t, 0.09678418f);
  p = gpu_fma(p, t, 0.37409196f);
  p = gpu_fma(p, t, 1.00002368f);
  p = gpu_fma(p, t, -1.26551223f);
  const float r = t * gpu_exp(gpu_fma(-z, z, p));
  return x < 0 ? 2.0f - r : r;
}

DEVICE float gelu_tanh_of(float v) { return v * gpu_sigmoid(1.5957691216f * gpu_fma(0.044715f * v * v, v, v)); }
DEVICE float gelu_erf_of(float v) { return 0.5f * v * erfc_nr(v * -0.70710678f); }
