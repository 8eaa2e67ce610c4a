// C[m][n] = alpha * A[m][k] * op(B) (+ C): float, row-major, leading dimensions, any size; op(B) is B[n][k]^T (nt) or B[k][n]
// (nn). 64x64 tiles, 16x16 threads of 4x4 results, k in steps of 16; grid (ceil(n / 64), ceil(m / 64)). 8.5 KB shared, 56
// registers (63 allowed on compute capability 2.0; an 8x8 version spills 2.3 KB there and runs at an eighth of the speed).
// A result's sum runs over k in order, whatever m is. H200: 25 to 30 TFLOP/s, 55 to 77 % of cublasSgemm (GPU-FACTS, section 3).
#include "backend/cuda/kernels/gpu.h"

constexpr int kLd = 68;  // row of a transposed tile: no bank conflicts, 16-byte aligned

template <bool BTransposed>
DEVICE void sgemm(float* C, const float* A, const float* B, int m, int n, int k, int lda, int ldb, int ldc, float alpha,
                  int accumulate) {
  SHARED F4 as4[16 * kLd / 4], bs4[16 * kLd / 4];
  float *as = (float*)as4, *bs = (float*)bs4, acc[4][4];
  gpu_wait_inputs();
  const int t = tid_x(), tx = t & 15, ty = t >> 4, m0 = bid_y() * 64, n0 = bid_x() * 64;
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0;
  }
  const int row = t >> 2, col = (t & 3) * 4;  // A (and transposed B): 64 rows of 16
  const int a_row = gpu_min_i(m0 + row, m - 1), b_row = gpu_min_i(n0 + row, n - 1);
  const int k_row = t >> 4, n_col = (t & 15) * 4;  // plain B: 16 rows of 64
  for (int k0 = 0; k0 < k; k0 += 16) {
    UNROLL for (int i = 0; i < 4; i++) {
      const int kk = k0 + col + i;
      const float av = A[(u64)a_row * (u64)lda + (u64)gpu_min_i(kk, k - 1)];
      as[(col + i) * kLd + row] = kk < k ? av : 0.0f;
      if (BTransposed) {
        const float bv = B[(u64)b_row * (u64)ldb + (u64)gpu_min_i(kk, k - 1)];
        bs[(col + i) * kLd + row] = kk < k ? bv : 0.0f;
      } else {
        const float bv = B[(u64)gpu_min_i(k0 + k_row, k - 1) * (u64)ldb + (u64)gpu_min_i(n0 + n_col + i, n - 1)];
        bs[k_row * kLd + n_col + i] = k0 + k_row < k ? bv : 0.0f;
      }
    }
    gpu_sync();
    UNROLL for (int kk = 0; kk < 16; kk++) {
      const F4 va = as4[kk * (kLd / 4) + ty], vb = bs4[kk * (kLd / 4) + tx];
      const float x[4] = {va.x, va.y, va.z, va.w}, y[4] = {vb.x, vb.y, vb.z, vb.w};
      UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int j = 0; j < 4; j++) acc[i][j] = gpu_fma(x[i], y[j], acc[i][j]);
      }
    }
    gpu_sync();
  }
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int j = 0; j < 4; j++) {
      const int r = m0 + ty * 4 + i, c = n0 + tx * 4 + j;
      if (r < m && c < n) {
        float* to = C + (u64)r * (u64)ldc + (u64)c;
        *to = accumulate ? gpu_fma(alpha, acc[i][j], *to) : alpha * acc[i][j];
      }
    }
  }
}
KERNEL(sgemm_nt, 256, float* C, const float* A, const float* B, int m, int n, int k, int lda, int ldb, int ldc, float alpha,
       int accumulate) {
  sgemm<true>(C, A, B, m, n, k, lda, ldb, ldc, alpha, accumulate);
}
KERNEL(sgemm_nn, 256, float* C, const float* A, const float* B, int m, int n, int k, int lda, int ldb, int ldc, float alpha,
       int accumulate) {
  sgemm<false>(C, A, B, m, n, k, lda, ldb, ldc, alpha, accumulate);
}
