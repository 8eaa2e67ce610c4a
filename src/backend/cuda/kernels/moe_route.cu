// Router: the top_k largest of a row's logits (lower index first among equals) and their softmax. That is the softmax over all
// experts, renormalised: the sum over all of them cancels. Block of 256 threads a row, grid (min(rows, 65535)); up to 1024 experts in
// shared memory (4 KB). A thread counts how many experts come before one of its own, among all or a share of them: two barriers, where
// top_k passes of a tree argmax have 8 each.
#include "backend/cuda/kernels/gpu.h"

KERNEL(moe_route, 256, int* ids, float* weights, const float* logits, int rows, int experts, int top_k) {
  SHARED F4 p4[256];
  SHARED int before[256];
  SHARED float chosen[64];
  float* p = (float*)p4;
  const int t = tid_x(), quads = (experts + 3) / 4;
  const int parts = experts <= 64 ? 4 : experts <= 128 ? 2 : 1, part = t / (256 / parts), each = (quads + parts - 1) / parts;
  gpu_let_next_start();
  gpu_wait_inputs();
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    const float* row = logits + (u64)r * (u64)experts;
    for (int i = t; i < 4 * quads; i += 256) {
      const float v = i < experts ? row[i] : -3.4e38f;
      p[i] = v >= -3.0e38f ? v : i < experts ? -3.0e38f : -3.4e38f;  // NaN: any experts, the result is NaN anyway
    }
    gpu_sync();
    for (int e = t % (256 / parts); e < experts; e += 256) {
      const float mine = p[e];
      int rank = 0;
      for (int j = part * each; j < gpu_min_i(quads, (part + 1) * each); j++) {
        const F4 v = p4[j];
        rank += v.x > mine || (v.x == mine && 4 * j < e);
        rank += v.y > mine || (v.y == mine && 4 * j + 1 < e);
        rank += v.z > mine || (v.z == mine && 4 * j + 2 < e);
        rank += v.w > mine || (v.w == mine && 4 * j + 3 < e);
      }
      if (parts > 1) {
        before[t] = rank;
      } else if (rank < top_k) {
        chosen[rank] = mine;
        ids[r * top_k + rank] = e;
      }
    }
    gpu_sync();
    if (parts > 1) {
      if (t < experts) {
        int rank = 0;
        for (int i = 0; i < parts; i++) rank += before[i * (256 / parts) + t];
        if (rank < top_k) {
          chosen[rank] = p[t];
          ids[r * top_k + rank] = t;
        }
      }
      gpu_sync();
    }
    if (t < top_k) {
      float total = 0;
      for (int k = 0; k < top_k; k++) total += gpu_exp(chosen[k] - chosen[0]);
      weights[r * top_k + t] = gpu_exp(chosen[t] - chosen[0]) / total;
    }
    gpu_sync();
  }
}
