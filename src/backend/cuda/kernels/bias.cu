// Biases of products of many rows, alone and on the way of what follows the product. A block of 256 threads takes a row (so that no
// index is divided by the row's length), grid (min(rows, 65535)), stride loop; bound by memory: values go by quads where rows are made of them.
//   add_biases: x[j] += bias[j], up to four matrices of one shape, matrix j by the blocks with y = j
//   add_biased: x += y + bias            gelu_*_biased: x = gelu(x + bias), and as bf16 at `twin` where it is not null
#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/bias_args.h"
#include "backend/cuda/kernels/gelu.h"
#include "backend/cuda/kernels/quads.h"

/// to[i] = op(row[i] + bias[i], i) for all columns; `to` may be `row`. A twin needs columns in fours.
template <class Op>
DEVICE void biased_row(float* to, u16* twin, const float* row, const float* bias, int cols, const Op& op) {
  const int t = tid_x();
  if (cols % 4 != 0) {
    for (int i = t; i < cols; i += 256) to[i] = op(row[i] + bias[i], i);
    return;
  }
  for (int first = t; first < cols / 4; first += 1024) {
    F4 v[4], b[4];  // loads before the first store: as far as the compiler knows a store may change what is loaded next
    UNROLL for (int j = 0; j < 4; j++) {
      const int i = gpu_min_i(first + 256 * j, cols / 4 - 1);
      v[j] = load_f4(row + 4 * i);
      b[j] = load_f4(bias + 4 * i);
    }
    UNROLL for (int j = 0; j < 4; j++) {
      const int i = 4 * (first + 256 * j);
      if (i < cols) {
        const F4 r = {op(v[j].x + b[j].x, i), op(v[j].y + b[j].y, i + 1), op(v[j].z + b[j].z, i + 2), op(v[j].w + b[j].w, i + 3)};
        store_f4(to + i, r);
        if (twin) store_twin(twin + i, r);
      }
    }
  }
}
template <class Op>
DEVICE void biased_rows(float* x, u16* twin, const float* bias, int rows, int cols, const Op& op) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const u64 at = (u64)r * (u64)cols;
    biased_row(x + at, twin ? twin + at : (u16*)0, x + at, bias, cols, op);
  }
}

KERNEL(add_biases, 256, BiasArgs p, int rows, int cols) {
  const int j = bid_y();
  float* x = j == 0 ? p.x[0] : j == 1 ? p.x[1] : j == 2 ? p.x[2] : p.x[3];
  const float* bias = j == 0 ? p.bias[0] : j == 1 ? p.bias[1] : j == 2 ? p.bias[2] : p.bias[3];
  biased_rows(x, (u16*)0, bias, rows, cols, [](float v, int) { return v; });
}
KERNEL(add_biased, 256, float* x, const float* y, const float* bias, int rows, int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const u64 at = (u64)r * (u64)cols;
    float* sum = x + at;
    biased_row(sum, (u16*)0, y + at, bias, cols, [&](float v, int i) { return sum[i] + v; });
  }
}
KERNEL(gelu_tanh_biased, 256, float* x, u16* twin, const float* bias, int rows, int cols) {
  biased_rows(x, twin, bias, rows, cols, [](float v, int) { return gelu_tanh_of(v); });
}
KERNEL(gelu_erf_biased, 256, float* x, u16* twin, const float* bias, int rows, int cols) {
  biased_rows(x, twin, bias, rows, cols, [](float v, int) { return gelu_erf_of(v); });
}
