// Grouped product of sorted pairs with their experts' weights on tensor cores, the body of moe_mma_<type>_<TM>.sm80.cu:
//   out[pair][n] = a[pair / rows_per_input][k] * W[expert(pair)][n][k]^T, or, paired, hidden = silu(gate) * up of two such products
// TM pairs (64 or 128) x 128 rows of weights a block (paired: 64 of gate and 64 of up in turns of 8, so that a thread holds both
// sums of a result), 8 warps of TM / 2 x 32, k in steps of 32. Weights are unpacked to bf16 on their way into shared memory; the
// next step's operands are loaded while this one's are multiplied (two tiles of each in shared memory, one barrier a step).
// grid (ceil(n / (paired ? 64 : 128)), most tiles); blocks past the list of tiles leave. Rows of 40 bf16: no bank conflicts.
// k must be a multiple of 32. Each result sums over k in order, whatever shares its tile, and TM does not change it.
#pragma once

#include "backend/cuda/kernels/matrix_loads.h"
#include "backend/cuda/kernels/moe_args.h"
#include "backend/cuda/kernels/weight_formats.h"

#if GPU_TIER >= 80

constexpr int kMmaPitch = 40;

DEVICE U2 pack_bf16(F4 v) {
  U2 r;
  r.x = f32x2_to_bf16x2(v.x, v.y);
  r.y = f32x2_to_bf16x2(v.z, v.w);
  return r;
}

// The i-th quad of the 16 columns that a thread unpacks, as bf16. A group of 32 is shared by two threads; `half` chooses by selection,
// for an index into registers must be constant. Unpacking decides the rate of the whole product (with both halves unpacked to choose
// one, q4_0 took 973 us where 141 TFLOP/s are 30 % of what these instructions reach), so q4_0 and bf16 have ways of their own.
template <class F>
struct MmaQuads {
  static constexpr int kRaw = F::kGroup >= 16 ? 1 : 16 / F::kGroup;
  static constexpr int kQuads = F::kGroup >= 16 ? 4 : F::kGroup / 4;  // of one group
  DEVICE_M static U2 quad(const typename F::Raw (&raw)[kRaw], int half, int i) {
    const U2 low = pack_bf16(F::values(raw[i / kQuads], i % kQuads));
    if (F::kGroup < 32) return low;
    const U2 high = pack_bf16(F::values(raw[0], F::kGroup >= 32 ? i + 4 : i));
    U2 v;
    v.x = half ? high.x : low.x;
    v.y = half ? high.y : low.y;
    return v;
  }
};
// Columns 16 half .. are the low or the high nibbles. 0x43nn0000 is 128 + n as a float, and (128 + n) d - 136 d is exact in one
// instruction, for 136 d is.
template <>
struct MmaQuads<FormatQ4_0> {
  static constexpr int kRaw = 1;
  DEVICE_M static U2 quad(const FormatQ4_0::Raw (&raw)[1], int half, int i) {
    const u32 n = word(raw[0].w, i) >> (4 * half) & 0x0f0f0f0fu;
    const float d = raw[0].d, bias = -136.0f * d;
    return pack_bf16(F4{gpu_fma(as_f32(gpu_prmt(n, 0x43000000u, 0x7044)), d, bias), gpu_fma(as_f32(gpu_prmt(n, 0x43000000u, 0x7144)), d, bias),
                        gpu_fma(as_f32(gpu_prmt(n, 0x43000000u, 0x7244)), d, bias), gpu_fma(as_f32(gpu_prmt(n, 0x43000000u, 0x7344)), d, bias)});
  }
};
template <>
struct MmaQuads<FormatBf16> {
  static constexpr int kRaw = 2;
  DEVICE_M static U2 quad(const FormatBf16::Raw (&raw)[2], int, int i) {
    const U4& w = raw[i >> 1].w;
    U2 v;
    v.x = i & 1 ? w.z : w.x;
    v.y = i & 1 ? w.w : w.y;
    return v;
  }
};

template <class F, int TM, bool Paired>
DEVICE void moe_mma(const MoeMmaArgs& p) {
  constexpr int kA = TM * 8 / 256;                                   // quads of 4 activations that a thread moves a step
  constexpr int kRaw = MmaQuads<F>::kRaw;                            // weight groups of 16 columns
  constexpr int MI = TM / 32, NI = 4;
  SHARED U4 as4[2 * TM * kMmaPitch / 8], bs4[2 * 128 * kMmaPitch / 8];
  u16 *as = (u16*)as4, *bs = (u16*)bs4;
  gpu_wait_inputs();
  if (bid_y() >= p.offsets[p.experts + 1]) return;  // the whole block
  const int expert = p.tiles[2 * bid_y()], first = p.tiles[2 * bid_y() + 1];
  if (expert < p.expert_begin || expert >= p.expert_end) return;
  const int count = gpu_min_i(TM, p.offsets[expert + 1] - first);
  const int t = tid_x(), lane = t & 31, warp = t >> 5, n0 = bid_x() * (Paired ? 64 : 128);

  const u16* a_row[kA];
  UNROLL for (int i = 0; i < kA; i++) {
    const int pair = p.order[first + gpu_min_i((t >> 3) + 32 * i, count - 1)];
    a_row[i] = p.a + (u64)(pair / p.rows_per_input) * (u64)p.k;
  }
  const int quad = t & 7;
  const int b_row = t >> 1, half = t & 1;
  const int w_row = Paired ? n0 + (b_row >> 4) * 8 + (b_row & 7) : n0 + b_row;
  const WeightView view{Paired && (b_row & 8) ? p.weight2 : p.weight, p.elements};
  const u64 start = ((u64)(expert - p.first_expert) * (u64)p.n + (u64)gpu_min_i(w_row, p.n - 1)) * (u64)p.k;

  U2 a_next[kA];
  typename F::Raw b_next[kRaw];
  auto load = [&](int k0) {
    const int at = F::kScattered ? F::position(k0 / 32, quad) : k0 + quad * 4;
    UNROLL for (int i = 0; i < kA; i++) a_next[i] = load8((const u8*)(a_row[i] + at));
    UNROLL for (int i = 0; i < kRaw; i++) {
      b_next[i] = F::load(view, start, F::kGroup >= 32 ? k0 / 32 : k0 / F::kGroup + half * kRaw + i);
    }
  };
  auto store = [&](int buffer) {
    UNROLL for (int i = 0; i < kA; i++) {
      U2* to = (U2*)(as + (buffer * TM + (t >> 3) + 32 * i) * kMmaPitch + quad * 4);
      to->x = a_next[i].x;
      to->y = a_next[i].y;
    }
    U2* to = (U2*)(bs + (buffer * 128 + b_row) * kMmaPitch + half * 16);
    UNROLL for (int i = 0; i < 4; i++) {
      const U2 v = MmaQuads<F>::quad(b_next, half, i);
      to[i].x = v.x;
      to[i].y = v.y;
    }
  };

  float acc[MI][NI][4];
  UNROLL for (int i = 0; i < MI; i++) {
    UNROLL for (int j = 0; j < NI; j++) {
      UNROLL for (int c = 0; c < 4; c++) acc[i][j][c] = 0;
    }
  }
  const int wm = (warp & 1) * (TM / 2), wn = (warp >> 1) * 32, g = lane >> 2, pos = (lane & 3) * 2;
  const TileLane a_tile = a_lane(as + wm * kMmaPitch, kMmaPitch, lane), b_tile = b_lane(bs + wn * kMmaPitch, kMmaPitch, lane);
  load(0);
  store(0);
  gpu_sync();
  int buffer = 0;
  NO_UNROLL for (int k0 = 0; k0 < p.k; k0 += 32) {
    const bool more = k0 + 32 < p.k;
    if (more) load(k0 + 32);
    const int a_at = buffer * TM * kMmaPitch, b_at = buffer * 128 * kMmaPitch;
    UNROLL for (int kk = 0; kk < 32; kk += 16) {
      u32 b[NI][2];
      UNROLL for (int j = 0; j < NI; j += 2) load_b(b[j], b[j + 1], b_tile, b_at + j * 8 * kMmaPitch + kk, kMmaPitch);
      UNROLL for (int i = 0; i < MI; i++) {
        u32 a[4];
        load_a(a, a_tile, a_at + i * 16 * kMmaPitch + kk, kMmaPitch);
        UNROLL for (int j = 0; j < NI; j++) gpu_mma_bf16(acc[i][j], a, b[j]);
      }
    }
    if (more) store(buffer ^ 1);
    buffer ^= 1;
    gpu_sync();
  }

  UNROLL for (int i = 0; i < MI; i++) {
    UNROLL for (int h = 0; h < 2; h++) {
      const int r = wm + i * 16 + h * 8 + g;
      if (r >= count) continue;
      const u64 to = (u64)p.order[first + r] * (u64)p.n;
      if (Paired) {
        UNROLL for (int j = 0; j < NI; j += 2) {
          const int c = n0 + (wn + j * 8) / 2 + pos;
          const float v0 = gpu_silu(acc[i][j][2 * h]) * acc[i][j + 1][2 * h];
          const float v1 = gpu_silu(acc[i][j][2 * h + 1]) * acc[i][j + 1][2 * h + 1];
          if (c < p.n) p.hidden[to + (u64)c] = f32_to_bf16(v0);
          if (c + 1 < p.n) p.hidden[to + (u64)c + 1] = f32_to_bf16(v1);
        }
      } else {
        UNROLL for (int j = 0; j < NI; j++) {
          const int c = n0 + wn + j * 8 + pos;
          if (c < p.n) p.out[to + (u64)c] = acc[i][j][2 * h];
          if (c + 1 < p.n) p.out[to + (u64)c + 1] = acc[i][j][2 * h + 1];
        }
      }
    }
  }
}
// Two blocks share a multiprocessor: 128 registers.
#ifdef GPU_EMULATOR
#define MOE_THREADS 256
#else
#define MOE_THREADS 256, 2
#endif
#define MOE_MMA(type, Format, TM)                                                                       \
  KERNEL(moe_mma_##type##_##TM, MOE_THREADS, const MoeMmaArgs a) { moe_mma<Format, TM, false>(a); }     \
  KERNEL(moe_mma_##type##_##TM##_pair, MOE_THREADS, const MoeMmaArgs a) { moe_mma<Format, TM, true>(a); }

#endif
