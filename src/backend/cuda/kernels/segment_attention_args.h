// Arguments of segment_attention_*; plain types, also included by host code.
#pragma once

struct SegmentAttentionArgs {
  const float *q, *k, *v;          // rows `stride` floats apart, heads side by side
  const float *q_bias, *v_bias;    // [width] each, or null; a bias of the keys changes no result
  float* out;                      // [rows, width]
  unsigned short* twin;            // the same as bf16, or null
  const int* segments;             // segment s: rows segments[s] .. segments[s + 1] - 1
  int count;                       // of segments
  int stride, width, head_dim;     // in floats
  float scale;                     // of the scores; of segment_attention_<dim>_<rows> times log2(e)
};
