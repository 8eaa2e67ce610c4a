// Arguments of the gemv_<type> kernels; also included by host code, so plain types only.
#pragma once

#include "backend/cuda/kernels/step_table.h"

constexpr int kGemvThreads = 256;
constexpr int kGemvMaxSegments = 6;

struct GemvSegment {
  const unsigned char* data;    // weight in its device layout (weight_formats.h)
  unsigned long long elements;  // of the whole weight
  float* out;                   // [m, rows]
  const float* bias;            // [rows] or null
  int rows, reserved;
};

struct GemvArgs {
  GemvSegment segments[kGemvMaxSegments];
  const float* x;          // [m, k]
  int segment_count, k, m;
  int lanes;               // threads that share a row: 32, 64, 128 or 256; fixed by the shape
  int blocks;              // groups of rows; a block of the grid takes every nbid_x()-th
  // Input norm (m == 1): x is replaced by rms_norm(x) * norm_weight, which block 0 also writes to `normed`.
  const float* norm_weight;
  float* normed;
  float* normed_copy;      // a second place for it, or null
  float eps;
  // What happens to the sums.
  int paired;              // segments 0 and 1 are gate and up: swiglu_out[m][row] = silu(gate) * up
  float* swiglu_out;
  float* residual;         // segment 0: residual[m][row] += sum
  // Segment 0 feeds a causal convolution of 4 taps with one row a sequence (row r = sequence r): conv_out = silu(conv), and the
  // sequence's conv state of this layer moves on by one.
  const float* conv_weight;  // [rows, 4] or null
  float* conv_out;           // [m, rows]
  const StepSequence* sequences;
  int layer;
  // Experts: row y of the grid uses expert expert_ids[y] (segments hold `rows` rows of each) and input row y / inputs_per_row.
  const int* expert_ids;
  int rows_per_input;
};
