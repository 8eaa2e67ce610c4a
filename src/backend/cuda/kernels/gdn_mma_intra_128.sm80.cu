// First phase of the chunked gated delta rule on tensor cores (gdn_chunk_intra.h has the formulas and the FP32 form): everything inside
// a chunk of 64 tokens. Products q k and k k take TF32 operands; the substitution is FP32, one thread a column of [u | w] with the 64
// rows in registers, so a thread waits for nobody (the FP32 form keeps 16 and passes the others through global memory: 60 us for the
// 240 chunks and heads of 947 tokens on an H200). Grid (chunks, nv, sequences), 256 threads, 67,584 bytes of dynamic shared memory.
#include "backend/cuda/kernels/gdn_mma_chunk.h"

#if GPU_TIER >= 80

constexpr int kPitch = 132;  // words of a row of 128: fragments meet no bank twice
constexpr int kAPitch = 68;

/// Takes rows First .. First + 15 out of those below them. In parts, for clang unrolls no loop as large as the whole, and an index known
/// at run time only would put x into local memory.
template <int First>
DEVICE void eliminate(float (&x)[64], const F4* a4) {
  UNROLL for (int j = First; j < First + 16; j++) {
    UNROLL for (int i = First / 4; i < 16; i++) {
      if (4 * i + 3 <= j) continue;  // zeros: on and above the diagonal
      const F4 a = a4[j * (kAPitch / 4) + i];
      if (4 * i > j) x[4 * i] = gpu_fma(a.x, x[j], x[4 * i]);
      if (4 * i + 1 > j) x[4 * i + 1] = gpu_fma(a.y, x[j], x[4 * i + 1]);
      if (4 * i + 2 > j) x[4 * i + 2] = gpu_fma(a.z, x[j], x[4 * i + 2]);
      x[4 * i + 3] = gpu_fma(a.w, x[j], x[4 * i + 3]);
    }
  }
}

KERNEL(gdn_mma_intra_128, 256, const GdnMmaArgs p) {
  DYN_SHARED(u32, ks);
  SHARED float raw[64], G[64], beta[64], exp_G[64];
  u32* qs = ks + 64 * kPitch;
  const StepSequence s = p.sequences[bid_z()];
  const int tid = tid_x(), warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
  const int h = bid_y(), kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const GdnChunk c = gdn_chunk_of(s, bid_z(), bid_x());
  const int n = c.rows;
  if (n <= 0 || s.num_rows <= p.recurrent_rows) return;  // the whole block
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads, channels = (2 * nk + nv) * kDim;
  const u64 at = c.slot * nv + (u64)h;
  if (tid < 64) {
    const u64 gate = (c.row0 + (u64)gpu_min_i(tid, n - 1)) * nv + (u64)h;
    raw[tid] = tid < n ? p.g[gate] : 0.0f;
    beta[tid] = tid < n ? p.beta[gate] : 0.0f;
  }
  UNROLL for (int i = 0; i < 8; i++) {
    const int r = (tid >> 5) + 8 * i, col = (tid & 31) * 4;
    const u64 from = ((c.row0 + (u64)gpu_min_i(r, n - 1)) * nk + (u64)kh) * kDim + (u64)col;
    const F4 *q = (const F4*)(p.q + from), *k = (const F4*)(p.k + from);
    U4 *q_to = (U4*)(qs + r * kPitch + col), *k_to = (U4*)(ks + r * kPitch + col);
    q_to->x = f32_to_tf32(q->x);
    q_to->y = f32_to_tf32(q->y);
    q_to->z = f32_to_tf32(q->z);
    q_to->w = f32_to_tf32(q->w);
    k_to->x = f32_to_tf32(k->x);
    k_to->y = f32_to_tf32(k->y);
    k_to->z = f32_to_tf32(k->z);
    k_to->w = f32_to_tf32(k->w);
  }
  gpu_sync();
  if (tid < 64) {
    float sum = 0;
    UNROLL for (int j = 0; j < 64; j++) sum += j <= tid ? raw[j] : 0.0f;
    G[tid] = sum;
    exp_G[tid] = gpu_exp(sum);
    p.cumulative[at * 64 + (u64)tid] = sum;
  }
  // Warp w: rows 16 (w % 4) .., columns 32 (w / 4) ..
  const int m0 = (warp & 3) * 16, n0 = (warp >> 2) * 32;
  float qk[4][4], kk[4][4];
  UNROLL for (int j = 0; j < 4; j++) {
    UNROLL for (int i = 0; i < 4; i++) qk[j][i] = kk[j][i] = 0;
  }
  UNROLL2 for (int d = 0; d < kDim; d += 8) {
    u32 aq[4], ak[4], b[4][2];
    load_a(aq, qs + (m0 + g) * kPitch + d + t, kPitch);
    load_a(ak, ks + (m0 + g) * kPitch + d + t, kPitch);
    UNROLL for (int j = 0; j < 4; j++) load_b(b[j], ks + (n0 + 8 * j + g) * kPitch + d + t);
    UNROLL for (int j = 0; j < 4; j++) {
      gpu_mma_tf32(qk[j], aq, b[j]);
      gpu_mma_tf32(kk[j], ak, b[j]);
    }
  }
  gpu_sync();
  F4* a4 = (F4*)qs;  // -A transposed, over the queries: A[j * kAPitch + i]
  float* A = (float*)qs;
  UNROLL for (int j = 0; j < 4; j++) {
    UNROLL for (int half = 0; half < 2; half++) {
      const int r = m0 + g + 8 * half, col = n0 + 8 * j + 2 * t;
      float score[2];
      UNROLL for (int i = 0; i < 2; i++) {
        const float decay = col + i <= r && r < n ? gpu_exp(G[r] - G[col + i]) : 0.0f;
        A[(col + i) * kAPitch + r] = col + i < r ? -beta[r] * kk[j][2 * half + i] * decay : 0.0f;
        score[i] = qk[j][2 * half + i] * decay * 0.0883883476f;
      }
      *(u32*)(p.attention + at * 4096 + (u64)(r * 64 + col)) = f32x2_to_bf16x2(score[0], score[1]);
    }
  }
  gpu_sync();
  const bool is_w = tid >= kDim;
  const int column = tid & (kDim - 1);
  const float* from = is_w ? p.k + (u64)kh * kDim + (u64)column : p.conv_out + (2 * nk + (u64)h) * kDim + (u64)column;
  const u64 step = is_w ? nk * kDim : channels;
  float x[64];
  UNROLL for (int i = 0; i < 64; i++) {
    const float value = from[(c.row0 + (u64)gpu_min_i(i, n - 1)) * step];
    x[i] = i < n ? beta[i] * (is_w ? value * exp_G[i] : value) : 0.0f;
  }
  eliminate<0>(x, a4);
  eliminate<16>(x, a4);
  eliminate<32>(x, a4);
  eliminate<48>(x, a4);
  if (is_w) {
    u32* to = p.w + at * 64 * kDim + (u64)column;
    UNROLL for (int i = 0; i < 64; i++) to[i * kDim] = f32_to_tf32(x[i]);
  } else {
    float* to = p.u + at * 64 * kDim + (u64)column;
    UNROLL for (int i = 0; i < 64; i++) to[i * kDim] = x[i];
  }
}

#endif
