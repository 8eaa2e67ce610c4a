// Biases of products of many rows, alone and on the way of what follows the product. A block of 256 threads takes a row (so that no
// index is divided by the row's length), grid (min(rows, 65535)), stride loop; bound by memory. Values are loaded by fours before the first
// is stored: as far as the compiler knows a store may change what is loaded next.
//   add_biases: x[j] += bias[j], up to four matrices of one shape, matrix j by the blocks with y = j; their rows lie `stride` floats apart
//   add_biased: x += y + bias            gelu_*_biased: x = gelu(x + bias)
#include "backend/cuda/kernels/bias_args.h"
#include "backend/cuda/kernels/gelu.h"

/// f(i) for the columns of this thread in fours: `load` those before `store`.
template <class Load, class Store>
DEVICE void by_fours(int cols, const Load& load, const Store& store) {
  for (int first = tid_x(); first < cols; first += 1024) {
    float v[4];
    UNROLL for (int j = 0; j < 4; j++) v[j] = first + 256 * j < cols ? load(first + 256 * j) : 0.0f;
    UNROLL for (int j = 0; j < 4; j++) {
      if (first + 256 * j < cols) store(first + 256 * j, v[j]);
    }
  }
}

KERNEL(add_biases, 256, BiasArgs p, int rows, int cols, int stride) {
  gpu_wait_inputs();
  const int j = bid_y();
  float* x = j == 0 ? p.x[0] : j == 1 ? p.x[1] : j == 2 ? p.x[2] : p.x[3];
  const float* bias = j == 0 ? p.bias[0] : j == 1 ? p.bias[1] : j == 2 ? p.bias[2] : p.bias[3];
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    float* row = x + (u64)r * (u64)stride;
    by_fours(cols, [&](int i) { return row[i] + bias[i]; }, [&](int i, float v) { row[i] = v; });
  }
}
KERNEL(add_biased, 256, float* x, const float* y, const float* bias, int rows, int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    float* sum = x + (u64)r * (u64)cols;
    const float* row = y + (u64)r * (u64)cols;
    by_fours(cols, [&](int i) { return sum[i] + (row[i] + bias[i]); }, [&](int i, float v) { sum[i] = v; });
  }
}
KERNEL(gelu_tanh_biased, 256, float* x, const float* bias, int rows, int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    float* row = x + (u64)r * (u64)cols;
    by_fours(cols, [&](int i) { return row[i] + bias[i]; }, [&](int i, float v) { row[i] = gelu_tanh_of(v); });
  }
}
KERNEL(gelu_erf_biased, 256, float* x, const float* bias, int rows, int cols) {
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    float* row = x + (u64)r * (u64)cols;
    by_fours(cols, [&](int i) { return row[i] + bias[i]; }, [&](int i, float v) { row[i] = gelu_erf_of(v); });
  }
}
