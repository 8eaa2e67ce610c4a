// Bidirectional attention inside short segments (at most 16 rows: the 2x2 windows of MiniCPM's merger), one block of 128 threads a
// (segment, head): grid (min(segments, 65535), heads). q, k, v rows and the scores lie in dynamic shared memory, (3 * 16 * hd + 256)
// floats. As products and softmax kernels of their own the 256 windows of a 448x448 picture took 12,000 launches.
#include "backend/cuda/kernels/gpu.h"

constexpr int kMostRows = 16;

KERNEL(segment_attention_small, 128, float* out, const float* q, const float* k, const float* v, const int* segments, int count, int width,
       int head_dim, float scale) {
  DYN_SHARED(float, shared);
  float *qs = shared, *ks = qs + kMostRows * head_dim, *vs = ks + kMostRows * head_dim, *scores = vs + kMostRows * head_dim;
  const int t = tid_x(), column = bid_y() * head_dim;
  gpu_wait_inputs();
  for (int s = bid_x(); s < count; s += nbid_x()) {
    const int begin = segments[s], n = segments[s + 1] - begin;
    gpu_sync();
    for (int i = t; i < n * head_dim; i += 128) {
      const u64 at = (u64)(begin + i / head_dim) * (u64)width + (u64)(column + i % head_dim);
      qs[i] = q[at];
      ks[i] = k[at];
      vs[i] = v[at];
    }
    gpu_sync();
    for (int i = t; i < n * n; i += 128) {
      const float *a = qs + i / n * head_dim, *b = ks + i % n * head_dim;
      float sum = 0;
      for (int d = 0; d < head_dim; d++) sum = gpu_fma(a[d], b[d], sum);
      scores[i] = sum * scale;
    }
    gpu_sync();
    if (t < n) {
      float* row = scores + t * n;
      float maximum = -3.0e38f, sum = 0;
      for (int j = 0; j < n; j++) maximum = gpu_max(maximum, row[j]);
      for (int j = 0; j < n; j++) {
        row[j] = gpu_exp(row[j] - maximum);
        sum += row[j];
      }
      for (int j = 0; j < n; j++) row[j] /= sum;
    }
    gpu_sync();
    for (int i = t; i < n * head_dim; i += 128) {
      const float* row = scores + i / head_dim * n;
      float sum = 0;
      for (int j = 0; j < n; j++) sum = gpu_fma(row[j], vs[j * head_dim + i % head_dim], sum);
      out[(u64)(begin + i / head_dim) * (u64)width + (u64)(column + i % head_dim)] = sum;
    }
  }
}
