// Causal depthwise convolution of 4 taps and SiLU over the rows of a step, and the conv state that goes with it.
//   y[t][c] = silu(sum_j w[c][j] x[t - 3 + j][c]); rows before the sequence's first come from its state (oldest first, 4 rows kept)
// Rows of x lie `stride` floats apart. gdn_conv: one thread a channel and kRows consecutive rows, grid (ceil(C / 128), ceil(rows / kRows)); each x is read once per
// thread run plus 3. gdn_conv_state runs after it (the states may still be read while it runs): thread a channel, grid (ceil(C /
// 128), sequences); captures are written before the state.
#include "backend/cuda/kernels/gpu.h"
#include "backend/cuda/kernels/step_table.h"

constexpr int kRows = 16;

KERNEL(gdn_conv, 128, float* out, const float* x, const float* weight, const StepSequence* sequences, const int* row_sequence,
       int layer, int rows, int channels, int stride) {
  gpu_wait_inputs();
  const int c = bid_x() * 128 + tid_x();
  if (c >= channels) return;
  const u64 C = (u64)channels, X = (u64)stride;
  const F4 w = ((const F4*)weight)[c];
  const int end = gpu_min_i(rows, (bid_y() + 1) * kRows);
  float x0 = 0, x1 = 0, x2 = 0;
  int known = -1;  // the sequence that x0..x2 belong to
  for (int t = bid_y() * kRows; t < end; t++) {
    const int s = row_sequence[t];
    if (s != known) {
      const int first = sequences[s].first_row;
      const float* state = sequences[s].conv + (u64)layer * 4 * C + (u64)c;
      x0 = t - 3 >= first ? x[(u64)(t - 3) * X + (u64)c] : state[(u64)(4 + t - 3 - first) * C];
      x1 = t - 2 >= first ? x[(u64)(t - 2) * X + (u64)c] : state[(u64)(4 + t - 2 - first) * C];
      x2 = t - 1 >= first ? x[(u64)(t - 1) * X + (u64)c] : state[(u64)(4 + t - 1 - first) * C];
      known = s;
    }
    const float x3 = x[(u64)t * X + (u64)c];
    float sum = w.x * x0;
    sum = gpu_fma(w.y, x1, sum);
    sum = gpu_fma(w.z, x2, sum);
    sum = gpu_fma(w.w, x3, sum);
    out[(u64)t * C + (u64)c] = gpu_silu(sum);
    x0 = x1;
    x1 = x2;
    x2 = x3;
  }
}

KERNEL(gdn_conv_state, 128, const float* x, const StepSequence* sequences, int layer, int channels, int stride) {
  gpu_wait_inputs();
  const int c = bid_x() * 128 + tid_x();
  if (c >= channels) return;
  const u64 C = (u64)channels, X = (u64)stride;
  const StepSequence s = sequences[bid_y()];
  float* state = s.conv + (u64)layer * 4 * C + (u64)c;
  float held[4];  // what the state held, for sequences shorter than it
  UNROLL for (int i = 0; i < 4; i++) held[i] = state[(u64)i * C];
  for (int capture = 0; capture <= s.num_captures; capture++) {
    const bool last = capture == s.num_captures;
    const int rows = last ? s.num_rows : s.captures[capture].rows;
    float* to = last ? state : s.captures[capture].conv + (u64)layer * 4 * C + (u64)c;
    UNROLL for (int i = 0; i < 4; i++) {
      float v = 0;
      if (rows - 4 + i >= 0) {
        v = x[(u64)(s.first_row + rows - 4 + i) * X + (u64)c];
      } else {  // element rows + i of `held`, chosen without an index known at run time only
        UNROLL for (int j = 0; j < 4; j++) v = rows + i == j ? held[j] : v;
      }
      to[(u64)i * C] = v;
    }
  }
}
