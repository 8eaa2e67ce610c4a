// Third phase of the chunked gated delta rule on tensor cores: the outputs of all chunks at once, from what the walk left, and the
// gated norm on top of them:
//   y = exp(G_i) (q_i 128^-1/2) S + attention v';   out = rms_norm(y) * norm * silu(z)
// Products take bf16 operands and sum in FP32: nothing goes back into the state from here.
// Grid (chunks, nv, sequences), 256 threads, 79,872 bytes of dynamic shared memory. Warp w: rows 16 (w % 4) .. of the chunk, columns
// 64 (w / 4) .. of the head.
#include "backend/cuda/kernels/async_copy.h"
#include "backend/cuda/kernels/gdn_mma_chunk.h"

#if GPU_TIER >= 80

constexpr int kLong = 136, kShort = 72;  // bf16 of rows of 128 and of 64: fragments meet no bank twice

KERNEL(gdn_mma_output_128, 256, const GdnMmaArgs p) {
  DYN_SHARED(u16, states);
  SHARED float G[64], squares[2][64];
  u16 *values = states + kDim * kLong, *attention = values + kDim * kShort, *queries = attention + 64 * kShort;
  const StepSequence s = p.sequences[bid_z()];
  const int tid = tid_x(), warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
  const int h = bid_y(), kh = key_head_of(h, p.num_k_heads, p.num_v_heads, p.tiled);
  const GdnChunk c = gdn_chunk_of(s, bid_z(), bid_x());
  const int n = c.rows;
  if (n <= 0 || s.num_rows <= p.recurrent_rows) return;  // the whole block
  const u64 nv = (u64)p.num_v_heads, nk = (u64)p.num_k_heads, at = c.slot * nv + (u64)h;
  UNROLL for (int i = 0; i < 8; i++) {
    const int r = (tid >> 4) + 16 * i, col = (tid & 15) * 8;
    gpu_copy16_async(states + r * kLong + col, p.states + (at * kDim + (u64)r) * kDim + (u64)col);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    const int r = (tid >> 3) + 32 * i, col = (tid & 7) * 8;
    gpu_copy16_async(values + r * kShort + col, p.values + (at * kDim + (u64)r) * 64 + (u64)col);
  }
  UNROLL for (int i = 0; i < 2; i++) {
    const int r = (tid >> 3) + 32 * i, col = (tid & 7) * 8;
    gpu_copy16_async(attention + r * kShort + col, p.attention + (at * 64 + (u64)r) * 64 + (u64)col);
  }
  if (tid < 64) G[tid] = p.cumulative[at * 64 + (u64)tid];
  UNROLL for (int i = 0; i < 8; i++) {
    const int r = warp + 8 * i, col = (tid & 31) * 4;  // rows past the end repeat the last; they are not stored
    const F4* q = (const F4*)(p.q + ((c.row0 + (u64)gpu_min_i(r, n - 1)) * nk + (u64)kh) * kDim + (u64)col);
    U2* to = (U2*)(queries + r * kLong + col);
    to->x = f32x2_to_bf16x2(q->x, q->y);
    to->y = f32x2_to_bf16x2(q->z, q->w);
  }
  gpu_wait_copies();
  gpu_sync();

  const int m0 = (warp & 3) * 16, n0 = (warp >> 2) * 64;
  float y[8][4];
  UNROLL for (int j = 0; j < 8; j++) {
    UNROLL for (int i = 0; i < 4; i++) y[j][i] = 0;
  }
  const auto product = [&](const u16* left, int left_pitch, const u16* right, int right_pitch, int depth) {
    UNROLL2 for (int k = 0; k < depth; k += 16) {
      u32 a[4];
      load_a(a, (const u32*)(left + (m0 + g) * left_pitch + k) + t, left_pitch / 2);
      UNROLL for (int j = 0; j < 8; j++) {
        u32 b[2];
        load_b(b, (const u32*)(right + (n0 + 8 * j + g) * right_pitch + k) + t);
        gpu_mma_bf16(y[j], a, b);
      }
    }
  };
  product(queries, kLong, states, kLong, kDim);
  const int ra = m0 + g, rb = ra + 8;
  const float ga = gpu_exp(G[ra]) * 0.0883883476f, gb = gpu_exp(G[rb]) * 0.0883883476f;
  UNROLL for (int j = 0; j < 8; j++) {
    y[j][0] *= ga;
    y[j][1] *= ga;
    y[j][2] *= gb;
    y[j][3] *= gb;
  }
  product(attention, kShort, values, kShort, 64);

  float sum_a = 0, sum_b = 0;
  UNROLL for (int j = 0; j < 8; j++) {
    sum_a = gpu_fma(y[j][1], y[j][1], gpu_fma(y[j][0], y[j][0], sum_a));
    sum_b = gpu_fma(y[j][3], y[j][3], gpu_fma(y[j][2], y[j][2], sum_b));
  }
  UNROLL for (int mask = 2; mask > 0; mask /= 2) {
    sum_a += gpu_shuffle_xor(sum_a, mask);
    sum_b += gpu_shuffle_xor(sum_b, mask);
  }
  if (t == 0) {
    squares[warp >> 2][ra] = sum_a;
    squares[warp >> 2][rb] = sum_b;
  }
  gpu_sync();
  UNROLL for (int half = 0; half < 2; half++) {
    const int r = half ? rb : ra;
    if (r >= n) continue;
    const float scale = gpu_rsqrt_approx((squares[0][r] + squares[1][r]) * (1.0f / kDim) + p.eps);
    const u64 row = ((c.row0 + (u64)r) * nv + (u64)h) * kDim;
    UNROLL for (int j = 0; j < 8; j++) {
      const int col = n0 + 8 * j + 2 * t;
      const F2 *z = (const F2*)(p.z + row + (u64)col), *norm = (const F2*)(p.norm + col);
      const float a = y[j][2 * half], b = y[j][2 * half + 1];
      if (p.core_out) {
        p.core_out[row + (u64)col] = a;
        p.core_out[row + (u64)col + 1] = b;
      }
      F2 v;
      v.x = a * scale * norm->x * gpu_silu(z->x);
      v.y = b * scale * norm->y * gpu_silu(z->y);
      F2* to = (F2*)(p.out + row + (u64)col);
      to->x = v.x;
      to->y = v.y;
      if (p.twin) *(u32*)(p.twin + row + (u64)col) = f32x2_to_bf16x2(v.x, v.y);
    }
  }
}

#endif
