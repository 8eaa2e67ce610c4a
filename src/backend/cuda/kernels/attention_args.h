// Arguments of the attention kernels; plain types, also included by host code.
#pragma once

#include "backend/cuda/kernels/step_table.h"

struct AttentionDecodeArgs {
  const float* q;       // [T, nh, hd]
  float* partial;       // [T, nh, splits, hd]
  float* partial_stat;  // [T, nh, splits, 2] maximum, sum
  const float* q_gate;  // [T, nh, 2, hd]
  float* out;           // [T, nh * hd]
  const StepSequence* sequences;
  const int* row_sequence;
  int layer, num_q_heads, num_kv_heads, head_dim, splits;
  int first_row;        // of the launch; partial buffers count from it
  float scale;
  int staged;  // the shared memory has room for a page of K and V
};

struct AttentionPrepareArgs {
  const float* q_gate;
  const float* k;
  const float* v;
  const float* q_weight;  // [hd]
  const float* k_weight;
  const float* rope_cos;  // [T, rotary_dim / 2]
  const float* rope_sin;
  float* q_out;           // [T, nh, hd] after RoPE
  float *tap_q_norm, *tap_k_norm, *tap_k_rope, *tap_gate;  // null unless asked for
  const StepSequence* sequences;
  const int* row_sequence;
  int layer, rows, num_q_heads, num_kv_heads, head_dim, rotary_dim, kv_type;
  float eps;
};

/// attention_step.h: one token of one sequence.
struct AttentionStepArgs {
  const float* q_gate;  // [nh, 2, D]
  const float* k;       // [nkv, D]
  const float* v;
  const float* q_weight;  // [D]
  const float* k_weight;
  const float* rope_cos;  // [rotary_dim / 2]
  const float* rope_sin;
  float* partial;         // [nh, splits, D]
  float* partial_stat;    // [nh, splits, 2] maximum, sum
  const StepSequence* sequence;
  int layer, num_q_heads, num_kv_heads, rotary_dim, splits;
  float scale, eps;
};
