// What kernels need to know about the sequences of a step, filled by the host in begin_step (see ops::StepPlan). It lies at a
// fixed device address, so that a recorded graph finds the values of the step that replays it.
#pragma once

// ops::StateCapture
struct StepCapture {
  int rows, reserved;
  float* conv;
  float* recurrent;
};

struct StepSequence {
  int first_row, num_rows, past_tokens, num_captures;
  float* conv;       // [gdn layers, 4, conv_channels]
  float* recurrent;  // [gdn layers, v heads, k dim, v dim]
  const StepCapture* captures;  // ascending rows
  unsigned char* const* pages;  // one 64-token page each, [attention layers, 2, kv heads, 64, head_dim]
};

enum KvType { kKvF32, kKvF16, kKvBf16 };  // of the pages
