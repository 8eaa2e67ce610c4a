// Arguments of the Gated DeltaNet kernels (gdn_recurrent, gdn_chunk_*); plain types, also included by host code.
#pragma once

#include "backend/cuda/kernels/step_table.h"

constexpr int kGdnChunk = 64;

struct GdnChunkArgs {
  const float* q;         // [T, nk, D] L2-normalised, not yet scaled by D^-1/2
  const float* k;         // [T, nk, D]
  const float* conv_out;  // [T, conv_channels], v in its last nv * D columns
  const float* g;         // [T, nv] log decay
  const float* beta;      // [T, nv]
  float* u;               // [T, nv, D] T (beta v); after the walk v'
  float* w;               // [T, nv, D] T (beta exp(G) k)
  float* attention;       // [T, nv, 64] (q k) exp(G_i - G_j) D^-1/2, zero above the diagonal
  float* cumulative;      // [T, nv] G: sum of g from the chunk's start
  float* states;          // [slots, nv, D, D] the state before each chunk (gdn_chunk.h)
  float* core_out;        // [T, nv, D]
  const StepSequence* sequences;
  int layer, num_k_heads, num_v_heads, tiled;
  int recurrent_rows;     // sequences of at most this many rows are left to gdn_recurrent
};

struct GdnArgs {
  const float* conv_out;   // [T, conv_channels]: q heads, k heads, v heads
  const float* a;          // [T, nv]
  const float* b;          // [T, nv]
  const float* z;          // [T, nv * D]
  const float* dt_bias;    // [nv]
  const float* neg_exp_a;  // [nv]
  const float* norm;       // [D]
  float* out;              // [T, nv * D]
  float* core_out;         // [T, nv * D] or null (a tap)
  const StepSequence* sequences;
  int layer, num_k_heads, num_v_heads, tiled;
  int recurrent_rows;      // longer sequences are left to the chunked form
  float eps;
};
