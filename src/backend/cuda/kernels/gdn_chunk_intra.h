// First phase of the chunked gated delta rule (Yang et al., "Gated Delta Networks", 2024; transformers' torch_chunk_gated_delta_
// rule): everything inside a chunk of 64 tokens, all chunks and heads at once. With G the running sum of g in the chunk:
//   A[i][j] = beta_i (k_i . k_j) exp(G_i - G_j), j < i          attention[i][j] = (q_i . k_j) exp(G_i - G_j) D^-1/2, j <= i
//   (I + A) [u | w] = [beta v | beta exp(G) k]
// Chunks lie at absolute positions (multiples of 64), so a prompt cut there gives the same bits as an uncut one. Decays reach
// exp(-33) a token: only differences G_i - G_j <= 0 are exponentiated, nothing is divided by a decay.
// The substitution is parallel over the 2 D columns (one thread each) and blocked by 16 rows: earlier rows come back from
// global memory (written by the same thread), the 16 in flight stay in registers. The paper's form, one row of 64 at a time with
// a barrier, leaves all but a row's threads idle.
// Grid (chunks, nv, sequences), 256 threads, 26 KB shared.
#pragma once

#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gdn_chunk.h"
#include "backend/cuda/kernels/gdn_math.h"

constexpr int kPitch = 68;

template <int D>
DEVICE void gdn_chunk_intra(const GdnChunkArgs& p) {
  SHARED F4 a4[64 * kPitch / 4], q4[16 * kPitch / 4], k4[16 * kPitch / 4];
  SHARED float G[64], beta[64];
  float *A = (float*)a4, *qs = (float*)q4, *ks = (float*)k4;  // A transposed: A[j * kPitch + i]
  gpu_wait_inputs();
  const StepSequence s = p.sequences[bid_z()];
  const int t = tid_x(), h = bid_y(), kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const GdnChunk chunk = gdn_chunk_of(s, bid_z(), bid_x());
  const int n = chunk.rows;
  if (n <= 0 || s.num_rows <= p.recurrent_rows) return;  // the whole block
  const u64 row0 = chunk.row0;
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads, channels = (2 * nk + nv) * D;
  if (t < 64) {
    G[t] = t < n ? p.g[(row0 + (u64)t) * nv + (u64)h] : 0.0f;
    beta[t] = t < n ? p.beta[(row0 + (u64)t) * nv + (u64)h] : 0.0f;
  }
  gpu_sync();
  if (t == 0) {
    float sum = 0;
    NO_UNROLL for (int i = 0; i < 64; i++) {
      sum += G[i];
      G[i] = sum;
    }
  }
  // 64x64 products q k and k k, 4x4 results of each a thread.
  const int tx = t & 15, ty = t >> 4, row = t >> 2, col = (t & 3) * 4;
  float qk[4][4], kk[4][4];
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int j = 0; j < 4; j++) qk[i][j] = kk[i][j] = 0;
  }
  NO_UNROLL for (int d0 = 0; d0 < D; d0 += 16) {
    const u64 at = ((row0 + (u64)gpu_min_i(row, n - 1)) * nk + (u64)kh) * D + (u64)(d0 + col);
    const F4 qv = *(const F4*)(p.q + at), kv = *(const F4*)(p.k + at);
    gpu_sync();
    qs[col * kPitch + row] = qv.x;
    qs[(col + 1) * kPitch + row] = qv.y;
    qs[(col + 2) * kPitch + row] = qv.z;
    qs[(col + 3) * kPitch + row] = qv.w;
    ks[col * kPitch + row] = kv.x;
    ks[(col + 1) * kPitch + row] = kv.y;
    ks[(col + 2) * kPitch + row] = kv.z;
    ks[(col + 3) * kPitch + row] = kv.w;
    gpu_sync();
    UNROLL2 for (int d = 0; d < 16; d++) {
      const F4 vq = q4[d * (kPitch / 4) + ty], vi = k4[d * (kPitch / 4) + ty], vj = k4[d * (kPitch / 4) + tx];
      const float x[4] = {vq.x, vq.y, vq.z, vq.w}, y[4] = {vi.x, vi.y, vi.z, vi.w}, z[4] = {vj.x, vj.y, vj.z, vj.w};
      UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int j = 0; j < 4; j++) {
          qk[i][j] = gpu_fma(x[i], z[j], qk[i][j]);
          kk[i][j] = gpu_fma(y[i], z[j], kk[i][j]);
        }
      }
    }
  }
  const float head_scale = D == 128 ? 0.0883883476f : D == 64 ? 0.125f : 0.176776695f;
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int j = 0; j < 4; j++) {
      const int r = ty * 4 + i, c = tx * 4 + j;
      const float decay = c <= r ? gpu_exp(G[r] - G[c]) : 0.0f;
      A[c * kPitch + r] = c < r && r < n ? beta[r] * kk[i][j] * decay : 0.0f;
      if (r < n) p.attention[((row0 + (u64)r) * nv + (u64)h) * 64 + (u64)c] = c < n ? qk[i][j] * decay * head_scale : 0.0f;
    }
  }
  if (t < n) p.cumulative[(row0 + (u64)t) * nv + (u64)h] = G[t];
  gpu_sync();
  if (t >= 2 * D) return;  // no barrier follows
  const bool is_w = t >= D;
  const int column = is_w ? t - D : t;
  float* out = (is_w ? p.w : p.u) + (row0 * nv + (u64)h) * D + (u64)column;
  const u64 step = nv * D;
  NO_UNROLL for (int b = 0; b < 64 && b < n; b += 16) {
    float x[16];
    UNROLL for (int i = 0; i < 16; i++) {
      const int r = b + i;
      x[i] = 0;
      if (r < n) {
        const u64 at = row0 + (u64)r;
        const float value = is_w ? p.k[(at * nk + (u64)kh) * D + (u64)column] * gpu_exp(G[r])
                                 : p.conv_out[at * channels + (2 * nk + (u64)h) * D + (u64)column];
        x[i] = beta[r] * value;
      }
    }
    NO_UNROLL for (int j = 0; j < b; j++) {
      const float known = out[(u64)j * step];
      UNROLL for (int i = 0; i < 4; i++) {
        const F4 c = a4[j * (kPitch / 4) + b / 4 + i];
        x[4 * i] = gpu_fma(-c.x, known, x[4 * i]);
        x[4 * i + 1] = gpu_fma(-c.y, known, x[4 * i + 1]);
        x[4 * i + 2] = gpu_fma(-c.z, known, x[4 * i + 2]);
        x[4 * i + 3] = gpu_fma(-c.w, known, x[4 * i + 3]);
      }
    }
    UNROLL for (int j = 0; j < 16; j++) {
      UNROLL for (int i = 0; i < 16; i++) {
        if (i > j) x[i] = gpu_fma(-A[(b + j) * kPitch + b + i], x[j], x[i]);
      }
    }
    UNROLL for (int i = 0; i < 16; i++) {
      if (b + i < n) out[(u64)(b + i) * step] = x[i];
    }
  }
}
