// Arguments of the kernels that take one token through a layer in a few launches (token_rows.h, gdn_token.h, router_logits,
// expert_token.h); plain types, also included by host code.
#pragma once

#include "backend/cuda/kernels/layer_args.h"

constexpr int kTokenThreads = 512;    // of token_rows
constexpr int kTokenMaxK = 4096;      // values of an input row: two quads a thread
constexpr int kTokenSegments = 4;
constexpr int kTokenGateRows = 16;    // rows of gates that a block takes, one a warp
constexpr int kGdnTokenThreads = 256;
constexpr int kGdnTokenColumns = 32;  // of a head's state that a block takes
constexpr int kRouterThreads = 256;
constexpr int kExpertThreads = 576;   // most threads of the experts' kernels
constexpr int kExpertBound = 640;       // 48 registers: 5 of 18 warps lie in a quarter of a multiprocessor, those of two kernels have 16,384
constexpr int kExpertSquares = (kExpertThreads / 32 + 3) / 4 * 4;
constexpr int kExpertMaxChosen = 16;
constexpr int kExpertPasses = 4;      // rows of `down` that a lane of expert_sum takes

struct TokenRowsArgs {
  const float* x;                 // [k]
  const float* norm_weight;       // [k] or null: x as it is
  float eps, inverse_k;
  int k, groups;                  // groups = k / 32
  // x is made of heads of 4 << head_shift values that still lack their RMS scale: rsqrt(sum of head_parts squares * inverse_head + head_eps).
  const float* head_squares;      // [k / head, head_parts] or null
  int head_shift, head_parts;
  float inverse_head, head_eps;
  LayerWeight weights[kTokenSegments];
  float* out[kTokenSegments];     // or null
  int first_row[kTokenSegments];  // rows are numbered through the weights
  int segments, rows;
  int blocks, rounds;             // blocks that take rows; a warp takes rounds * R of them (R is the kernel's)
  float* normed;                  // [k] or null: where the normed row goes
  float* normed_copy;             // another place for it, or null
  const float* residual_from;     // [rows]
  float* residual;                // residual = residual_from + products; or null
  // The first segment feeds a convolution of 4 taps, whose state moves on; the second one is put through SiLU.
  const float* conv_weight;       // [rows of the first segment, 4] or null
  float* conv_out;
  const StepSequence* sequence;
  int layer, channels;
  // Gates of a delta rule, by the blocks after the others: exp(neg_exp_a * softplus(a + dt_bias)) and sigmoid(b).
  LayerWeight a, b;
  int gate_format, heads;         // 0 heads: none
  const float* dt_bias;
  const float* neg_exp_a;
  float* decay;                   // [heads]
  float* beta;                    // [heads]
};

struct GdnTokenArgs {
  const float* conv_out;   // q heads, k heads, v heads
  const float* decay;      // [nv]
  const float* beta;       // [nv]
  const float* z;          // [nv * D], through SiLU
  const float* norm;       // [D]
  float* out;              // [nv * D] y * norm * z: without the RMS scale
  float* squares;          // [nv, D / 32] of y
  const StepSequence* sequence;
  int layer, num_k_heads, num_v_heads, tiled;
};

struct RouterArgs {
  const float* x;            // [k] the residual stream
  const float* norm_weight;  // [k]
  const float* router;       // [experts, k]
  const float* shared;       // [k] or null
  float* logits;             // [experts] and that of the shared expert
  int k, experts;
  float inverse_k, eps;
};

struct ExpertHiddenArgs {
  const float* x;            // [k] the residual stream
  const float* norm_weight;  // [k]
  const float* logits;
  LayerWeight gate, up;                // experts x [inner, k]
  LayerWeight shared_gate, shared_up;  // [inner, k] or null
  float* hidden;             // [slots, inner]: of the chosen experts by rank, then of the shared one
  int k, groups, experts, padded;      // padded: experts rounded up to 16
  int chosen, slots, inner;  // slots = chosen, and one for a shared expert
  int units, turns;          // of two inner values each; a warp takes `turns`
  float inverse_k, eps;
};

struct ExpertSumArgs {
  const float* hidden;       // [slots, inner]
  const float* logits;
  LayerWeight down, shared;  // experts x [rows, inner], [rows, inner]
  const float* residual_from;
  float* residual;           // [rows] residual_from + sum; or null
  float* out;                // [rows] sum; or null
  int experts, padded, chosen, slots, inner, groups, rows;  // groups = inner / 32
  int slot_warps;            // warps that share a slot
  int lanes_shift;           // log2 of the lanes that share a row of one expert
};
