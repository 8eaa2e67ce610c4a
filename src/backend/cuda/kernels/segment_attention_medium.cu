// Bidirectional attention inside a segment of at most 320 rows with heads of at most 128, FP32, as one kernel: as two products and a softmax the
// 256 rows that MiniCPM's merger leaves of a picture were 36 us a layer on an H200, most of it too little work a launch.
// A block of 256 threads takes 16 queries of a head: grid (ceil(n / 16), heads). Keys, then values, pass through shared memory 64 rows at a time;
// the queries' scores stay there. Dynamic shared memory: (16 + 64) rows of head_dim + 4 floats and 16 rows of scores (n rounded up to 4, + 4).
// Rows of q, k and v lie `stride` floats apart, those of out `width`. Sums: over a head's dims in order, over keys in order; of the softmax by 16 threads a row, then in order.
#include "backend/cuda/kernels/quads.h"

constexpr int kQueries = 16, kKeys = 64;

/// Rows first .. first + count - 1 (a multiple of 8, at most 64) of a head to shared memory; rows past the end repeat the last one. A warp takes a row,
/// a thread four of its values, eight rows are on their way at once: one by one they took half of the kernel's time.
DEVICE void load_head_rows(float* to, int pitch, const float* from, int first, int count, int n, int stride, int head_dim) {
  const int c = tid_x() % 32 * 4, row = tid_x() / 32;
  if (c >= head_dim) return;
  F4 v[8];
  UNROLL for (int i = 0; i < 8; i++) {
    if (8 * i < count) v[i] = load_f4(from + (u64)gpu_min_i(first + row + 8 * i, n - 1) * (u64)stride + (u64)c);
  }
  UNROLL for (int i = 0; i < 8; i++) {
    if (8 * i < count) store_f4(to + (row + 8 * i) * pitch + c, v[i]);
  }
}

KERNEL(segment_attention_medium, 256, float* out, const float* q, const float* k, const float* v, int n, int width, int stride,
       int head_dim, float scale) {
  DYN_SHARED(float, shared);
  SHARED float partial[256];
  const int t = tid_x(), tx = t & 15, ty = t >> 4, pitch = head_dim + 4, score_pitch = (n + 3) / 4 * 4 + 4, first = bid_x() * kQueries;
  float *qs = shared, *rows = qs + kQueries * pitch, *scores = rows + kKeys * pitch;
  const u64 head = (u64)(bid_y() * head_dim);
  gpu_wait_inputs();
  load_head_rows(qs, pitch, q + head, first, kQueries, n, stride, head_dim);
  // scores of query ty and keys tx + 16 i of the 64
  for (int j0 = 0; j0 < n; j0 += kKeys) {
    gpu_sync();
    load_head_rows(rows, pitch, k + head, j0, kKeys, n, stride, head_dim);
    gpu_sync();
    float sum[4] = {0, 0, 0, 0};
    UNROLL2 for (int d = 0; d < head_dim; d += 4) {
      const F4 a = load_f4(qs + ty * pitch + d);
      UNROLL for (int i = 0; i < 4; i++) {
        const F4 b = load_f4(rows + (tx + 16 * i) * pitch + d);
        sum[i] = gpu_fma(a.x, b.x, sum[i]);
        sum[i] = gpu_fma(a.y, b.y, sum[i]);
        sum[i] = gpu_fma(a.z, b.z, sum[i]);
        sum[i] = gpu_fma(a.w, b.w, sum[i]);
      }
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const int j = j0 + tx + 16 * i;
      if (j < n) scores[ty * score_pitch + j] = sum[i] * scale;
    }
  }
  gpu_sync();
  float* row = scores + ty * score_pitch;
  float maximum = -3.0e38f, total = 0;
  for (int j = tx; j < n; j += 16) maximum = gpu_max(maximum, row[j]);
  partial[t] = maximum;
  gpu_sync();
  UNROLL for (int i = 0; i < 16; i++) maximum = gpu_max(maximum, partial[ty * 16 + i]);
  gpu_sync();
  for (int j = tx; j < n; j += 16) {
    const float e = gpu_exp(row[j] - maximum);
    row[j] = e;
    total += e;
  }
  partial[t] = total;
  gpu_sync();
  total = 0;
  UNROLL for (int i = 0; i < 16; i++) total += partial[ty * 16 + i];
  const float inverse = 1.0f / total;
  for (int j = tx; j < score_pitch; j += 16) row[j] = j < n ? row[j] * inverse : 0.0f;  // zeros up to the next multiple of four, and more
  // outputs: four dims of two queries a thread
  const int c = t % 32 * 4, pair = t / 32 * 2;
  F4 acc[2] = {F4{0, 0, 0, 0}, F4{0, 0, 0, 0}};
  for (int j0 = 0; j0 < n; j0 += kKeys) {
    gpu_sync();
    load_head_rows(rows, pitch, v + head, j0, kKeys, n, stride, head_dim);
    gpu_sync();
    const int count = c < head_dim ? gpu_min_i(kKeys, (n - j0 + 3) / 4 * 4) : 0;
    UNROLL2 for (int j = 0; j < count; j += 4) {
      F4 w[2], value[4];
      UNROLL for (int i = 0; i < 2; i++) w[i] = load_f4(scores + (pair + i) * score_pitch + j0 + j);
      UNROLL for (int i = 0; i < 4; i++) value[i] = load_f4(rows + (j + i) * pitch + c);
      UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int r = 0; r < 2; r++) {
          const float weight = i == 0 ? w[r].x : i == 1 ? w[r].y : i == 2 ? w[r].z : w[r].w;
          acc[r].x = gpu_fma(weight, value[i].x, acc[r].x);
          acc[r].y = gpu_fma(weight, value[i].y, acc[r].y);
          acc[r].z = gpu_fma(weight, value[i].z, acc[r].z);
          acc[r].w = gpu_fma(weight, value[i].w, acc[r].w);
        }
      }
    }
  }
  UNROLL for (int r = 0; r < 2; r++) {
    const int row_of_out = first + pair + r;
    if (c < head_dim && row_of_out < n) store_f4(out + (u64)row_of_out * (u64)width + head + (u64)c, acc[r]);
  }
}
