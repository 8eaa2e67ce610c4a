// Arguments of the chunked delta rule on tensor cores (gdn_mma_*), head dimension 128; plain types, also included by host code.
// What passes between its three kernels lies by chunk: chunk c of sequence s is slot first_row / 64 + 2 s + c, which no two share (a
// sequence has at most rows / 64 + 2 chunks), and rows that a chunk lacks are zeros.
#pragma once

#include "backend/cuda/kernels/step_table.h"

struct GdnMmaArgs {
  const float* q;         // [T, nk, 128] L2-normalised, not yet scaled
  const float* k;         // [T, nk, 128]
  const float* conv_out;  // [T, conv_channels], v in its last nv * 128 columns
  const float* g;         // [T, nv] log decay
  const float* beta;      // [T, nv]
  const float* z;         // [T, nv * 128]
  const float* norm;      // [128]
  float* cumulative;         // [slots, nv, 64] G: sum of g from the chunk's start
  float* u;                  // [slots, nv, 64, 128] T (beta v)
  unsigned* w;               // [slots, nv, 64, 128] T (beta exp(G) k), as TF32
  unsigned short* attention; // [slots, nv, 64, 64] bf16 (q k) exp(G_i - G_j) 128^-1/2, zero above the diagonal
  unsigned short* values;    // [slots, nv, 128, 64] bf16: v' of the walk, transposed
  unsigned short* states;    // [slots, nv, 128 columns, 128] bf16: the state before the chunk, transposed
  float* core_out;           // [T, nv, 128] or null (a tap)
  float* out;                // [T, nv * 128]
  unsigned short* twin;      // the same as bf16, or null
  const StepSequence* sequences;
  int layer, num_k_heads, num_v_heads, tiled;
  int recurrent_rows;        // sequences of at most this many rows are left to gdn_recurrent
  float eps;
};
