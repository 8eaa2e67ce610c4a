// Arguments of add_biases; plain types, also included by host code.
#pragma once

constexpr int kBiasesMost = 4;

struct BiasArgs {
  float* x[kBiasesMost];           // matrices of one shape
  const float* bias[kBiasesMost];
};
