// Arguments of attention_flash; plain types, also included by host code.
#pragma once

struct AttentionFlashArgs {
  const float* q;            // [rows, nh, 256] after RoPE
  const unsigned short* k;   // [nkv, kv_rows, 256] bf16, whole tiles of 64 rows
  const unsigned short* v;   // the same
  const float* q_gate;       // [rows, nh, 2, 256]
  float* out;                // [rows, nh, 256]
  unsigned short* twin;      // the same as bf16, or null
  int rows, past, kv_rows;   // of the sequence
  int num_q_heads, group;    // query heads of a key head
  float scale_log2;          // 256^-1/2 log2 e
};
