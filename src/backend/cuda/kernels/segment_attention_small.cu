// Bidirectional attention inside short segments (at most 16 rows: the 2x2 windows of MiniCPM's merger), one block of 128 threads a
// (segment, head): grid (min(segments, 65535), heads). q, k, v rows and the scores lie in dynamic shared memory, (3 * 16 * hd + 256)
// floats. As products and softmax kernels of their own the 256 windows of a 448x448 picture took 12,000 launches.
#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/segment_attention_args.h"

constexpr int kMostRows = 16;

KERNEL(segment_attention_small, 128, SegmentAttentionArgs p) {
  DYN_SHARED(float, shared);
  const int head_dim = p.head_dim, t = tid_x(), column = bid_y() * head_dim;
  float *qs = shared, *ks = qs + kMostRows * head_dim, *vs = ks + kMostRows * head_dim, *scores = vs + kMostRows * head_dim;
  gpu_wait_inputs();
  for (int s = bid_x(); s < p.count; s += nbid_x()) {
    const int begin = p.segments[s], n = p.segments[s + 1] - begin;
    gpu_sync();
    for (int i = t; i < n * head_dim; i += 128) {
      const int c = column + i % head_dim;
      const u64 at = (u64)(begin + i / head_dim) * (u64)p.stride + (u64)c;
      qs[i] = p.q_bias ? p.q[at] + p.q_bias[c] : p.q[at];
      ks[i] = p.k[at];
      vs[i] = p.v_bias ? p.v[at] + p.v_bias[c] : p.v[at];
    }
    gpu_sync();
    for (int i = t; i < n * n; i += 128) {
      const float *a = qs + i / n * head_dim, *b = ks + i % n * head_dim;
      float sum = 0;
      for (int d = 0; d < head_dim; d++) sum = gpu_fma(a[d], b[d], sum);
      scores[i] = sum * p.scale;
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
      const u64 to = (u64)(begin + i / head_dim) * (u64)p.width + (u64)(column + i % head_dim);
      p.out[to] = sum;
      if (p.twin) p.twin[to] = f32_to_bf16(sum);
    }
  }
}
