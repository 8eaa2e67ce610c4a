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
  int rows;
  int first_team;               // teams are numbered through the segments
};

struct GemvArgs {
  GemvSegment segments[kGemvMaxSegments];
  const float* x;          // [m, k]
  int segment_count, k, m;
  int lanes, lanes_shift;  // threads that share a row: 32, 64, 128 or 256; fixed by the shape
  int groups, steps;       // of weights in a row; for each of its threads
  int blocks;              // groups of rows; a block of the grid takes every nbid_x()-th
  // Input norm (m == 1): x is replaced by rms_norm(x) * norm_weight, which block 0 also writes to `normed`.
  const float* norm_weight;
  float* normed;
  float* normed_copy;      // a second place for it, or null
  float eps, inverse_k;
  // What happens to the sums.
  int paired;              // segments 0 and 1 are gate and up: swiglu_out[m][row] = silu(gate) * up
  float* swiglu_out;
  float* residual;         // segment 0: residual[m][row] = residual_from[m][row] + sum
  const float* residual_from;  // null: residual itself
  // Segment 0 feeds a causal convolution of 4 taps with one row a sequence (row r = sequence r): conv_out = silu(conv), and the
  // sequence's conv state of this layer moves on by one.
  const float* conv_weight;  // [rows, 4] or null
  float* conv_out;           // [m, rows]
  const StepSequence* sequences;
  int layer;
  // Experts: row y of the grid uses expert expert_ids[y] (segments hold `rows` rows of each) and input row y / rows_per_input.
  const int* expert_ids;
  int rows_per_input;
  // One token: after its experts_chosen experts comes the shared one, whose weights are these (of segments 0 and 1) and whose
  // weight is the sigmoid of shared_logit; swiglu_out is multiplied by the weights (null: not).
  int experts_chosen;
  const unsigned char* shared_data[2];
  unsigned long long shared_elements;
  const float* expert_weights;
  const float* shared_logit;
  // Not 0: the inputs of the chosen experts, `joined` values each, are one row of k values, and their products are summed.
  int joined;
};
