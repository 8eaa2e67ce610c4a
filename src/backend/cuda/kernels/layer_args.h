// Arguments of the kernels that run half a layer for one token (gdn_layer.h, ffn_layer.h, input_rows.h,
// attention_out.h); plain types, also included by host code.
#pragma once

#include "backend/cuda/kernels/step_table.h"

constexpr int kLayerThreads = 512;
constexpr int kLayerCluster = 8;    // blocks of a cluster
constexpr int kLayerParts = 16;     // most clusters, each of which leaves a partial sum of the output
constexpr int kLayerMaxHidden = 4096;

/// The residual stream: x and the partial sums that the kernel before left.
struct LayerInput {
  const float* x;            // [hidden]
  const float* partials;     // [parts, hidden]
  float* sum;                // [hidden] x and its parts summed, or null; not x
  const float* norm_weight;  // [hidden]
  int parts, hidden, groups;  // groups = hidden / 32
  float inverse_hidden, eps;
};

struct LayerWeight {
  const unsigned char* data;    // in its device layout (weight_formats.h)
  unsigned long long elements;
};

enum LayerGateFormat { kGateQ8_0, kGateQ4_0, kGateF32, kGateF16, kGateBf16 };

struct GdnLayerArgs {
  LayerInput in;
  LayerWeight qkv, z, a, b, out;
  int gate_format;           // of a and b
  const float* conv_weight;  // [conv_channels, 4]
  const float* dt_bias;      // [heads]
  const float* neg_exp_a;    // [heads]
  const float* norm;         // [D]
  float* partials;           // [heads, hidden]
  const StepSequence* sequence;
  int layer, heads;
  int out_lanes_shift;       // log2 of the threads that share a row of `out`: at least its groups of 32 in a cluster
  float eps;
};

struct FfnLayerArgs {
  LayerInput in;
  LayerWeight gate, up, down;
  float* partials;         // [clusters, hidden]
  int inner, width;        // width = inner / clusters, a multiple of 32: columns of `down` of a cluster
  int out_lanes_shift;
};

constexpr int kInputRowsSegments = 4;

struct InputRowsArgs {
  LayerInput in;
  LayerWeight weights[kInputRowsSegments];
  float* out[kInputRowsSegments];
  int first_row[kInputRowsSegments], rows;  // rows of all weights in a row
  int segments, rows_of_block;            // a multiple of 4
  int split_shift;                        // log2 of the warps that share 4 rows
  float* normed;                          // [hidden] or null
  float* normed_copy;                     // another place for it, or null
};

constexpr int kAttentionOutColumns = 256;  // of a cluster

struct AttentionOutArgs {
  LayerWeight weight;         // [hidden, columns]
  const float* q_gate;        // [nh, 2, head_dim]
  const float* partial;       // [nh, splits, head_dim]
  const float* partial_stat;  // [nh, splits, 2] maximum, sum
  float* partials;            // [clusters, hidden]
  const StepSequence* sequence;
  int columns, hidden, head_dim, splits;
};
