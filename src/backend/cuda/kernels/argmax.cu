// ids[r] = index of the largest value of row r, the lowest of equals (NaN never wins). Two steps, since a vocabulary of 248,320
// in one block takes 60 us on an H200: grid (64, rows) blocks of 256 threads find their part's best, then one block a row.
#include "backend/cuda/kernels/gpu.h"

constexpr int kParts = 64;

DEVICE bool better(float v, int i, float best, int best_index) { return v > best || (v == best && i < best_index); }

DEVICE void block_best(float& best, int& index, float* values, int* indices) {
  const int t = tid_x();
  values[t] = best;
  indices[t] = index;
  for (int step = 128; step > 0; step /= 2) {
    gpu_sync();
    if (t < step && better(values[t + step], indices[t + step], values[t], indices[t])) {
      values[t] = values[t + step];
      indices[t] = indices[t + step];
    }
  }
  gpu_sync();
  best = values[0];
  index = indices[0];
}

KERNEL(argmax_parts, 256, float* part_values, int* part_indices, const float* x, int cols) {
  SHARED float values[256];
  SHARED int indices[256];
  gpu_wait_inputs();
  const float* row = x + (u64)bid_y() * (u64)cols;
  float best = -__builtin_inff();
  int index = 0x7fffffff;
  for (int i = bid_x() * 256 + tid_x(); i < cols; i += kParts * 256) {
    if (better(row[i], i, best, index)) {
      best = row[i];
      index = i;
    }
  }
  block_best(best, index, values, indices);
  if (tid_x() == 0) {
    part_values[bid_y() * kParts + bid_x()] = best;
    part_indices[bid_y() * kParts + bid_x()] = index;
  }
}

KERNEL(argmax_final, 256, int* ids, const float* part_values, const int* part_indices) {
  SHARED float values[256];
  SHARED int indices[256];
  gpu_wait_inputs();
  const int t = tid_x(), r = bid_x();
  float best = -__builtin_inff();
  int index = 0x7fffffff;
  if (t < kParts) {
    best = part_values[r * kParts + t];
    index = part_indices[r * kParts + t];
  }
  block_best(best, index, values, indices);
  if (t == 0) ids[r] = index == 0x7fffffff ? 0 : index;
}
