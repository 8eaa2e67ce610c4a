// Arguments of layer_norm and add_layer_norm; plain types, also included by host code.
#pragma once

constexpr int kLayerNormHeld = 4608;  // columns, a multiple of four, that stay in registers

struct LayerNormArgs {
  float* out;               // [rows, cols]
  unsigned short* twin;     // the same as bf16, where a row stays in registers; or null
  float* x;                 // [rows, cols]; add_layer_norm: x += delta + delta_bias first
  const float *delta, *delta_bias;
  const float *weight, *bias;
  int rows, cols;
  float inverse_cols, eps;  // 1 / cols
};
