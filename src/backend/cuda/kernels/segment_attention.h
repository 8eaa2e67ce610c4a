// Bidirectional attention inside long segments (the tiles of a picture), FP32, heads of HeadDim, as one kernel: scores stay on the multiprocessor.
// A block of 128 threads takes 16 * Rows queries of a head: grid (ceil(longest / (16 * Rows)), heads, segments), 64 keys at a time. A thread computes
// the scores of Rows queries and 8 keys, then HeadDim / 8 dims of the outputs of the same queries: shared memory returns 128 bytes a clock, so that the
// products per value loaded decide the speed. The softmax's weights take the keys' place there, values pass 32 at a time: 48,640 bytes with Rows 4 and heads of 72.
// Online softmax (FlashAttention, Dao et al. 2022) in base 2; what the eight threads of a query know of its maximum goes through shared memory, since
// compute capability 2.0 has no shuffles.
// Sums: a score over the dims in order; an output over the keys in order; of the softmax by eight threads, then in order: whatever Rows and other segments are.
#pragma once

#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/quads.h"
#include "backend/cuda/kernels/segment_attention_args.h"

constexpr int kTileKeys = 64, kTileValues = 32, kThreads = 128, kLanes = 8, kKeys = kTileKeys / kLanes, kPeakPitch = 12;

/// Rows first .. first + Count - 1 of a head to shared memory; rows past the end repeat the last one. Sixteen threads take 64 dims of a row.
template <int Count, int HeadDim>
DEVICE void load_head_rows(float* to, const float* from, const float* bias, int first, int n, int stride) {
  constexpr int kSteps = Count / 8, kPitch = HeadDim + 4, kRest = HeadDim / 4 - 16, kRestOf = kRest > 0 ? kRest : 1;
  constexpr int kRestSteps = (Count * kRest + kThreads - 1) / kThreads;
  const int row = tid_x() / 16, c = tid_x() % 16 * 4;
  F4 v[kSteps], rest[kRestSteps + 1];
  const auto load = [&](int r, int dim) { return load_f4(from + (u64)(u32)(gpu_min_i(first + r, n - 1) * stride) + (u64)dim); };
  UNROLL for (int i = 0; i < kSteps; i++) v[i] = load(row + 8 * i, c);
  UNROLL for (int i = 0; i < kRestSteps; i++) {
    const int at = gpu_min_i(tid_x() + kThreads * i, Count * kRest - 1);
    rest[i] = load(at / kRestOf, 64 + at % kRestOf * 4);
  }
  if (bias) {  // of the queries: that of the keys adds the same to all scores of a query, which the softmax takes away
    const F4 b = load_f4(bias + c);
    UNROLL for (int i = 0; i < kSteps; i++) v[i] = F4{v[i].x + b.x, v[i].y + b.y, v[i].z + b.z, v[i].w + b.w};
    UNROLL for (int i = 0; i < kRestSteps; i++) {
      const F4 r = load_f4(bias + 64 + (tid_x() + kThreads * i) % kRestOf * 4);
      rest[i] = F4{rest[i].x + r.x, rest[i].y + r.y, rest[i].z + r.z, rest[i].w + r.w};
    }
  }
  UNROLL for (int i = 0; i < kSteps; i++) store_f4(to + (row + 8 * i) * kPitch + c, v[i]);
  UNROLL for (int i = 0; i < kRestSteps; i++) {
    const int at = tid_x() + kThreads * i;
    if (at < Count * kRest) store_f4(to + at / kRestOf * kPitch + 64 + at % kRestOf * 4, rest[i]);
  }
}

/// Two or four floats in one access.
DEVICE void load_together(float (&to)[4], const float* from) {
  const F4 v = load_f4(from);
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}
DEVICE void load_together(float (&to)[2], const float* from) {
  const F2* q = (const F2*)from;
  to[0] = q->x;
  to[1] = q->y;
}
DEVICE void store_together(float* to, const float (&v)[4]) { store_f4(to, F4{v[0], v[1], v[2], v[3]}); }
DEVICE void store_together(float* to, const float (&v)[2]) {
  F2* q = (F2*)to;
  q->x = v[0];
  q->y = v[1];
}

template <int HeadDim, int Rows>
DEVICE void segment_attention(const SegmentAttentionArgs& p) {
  constexpr int kQueries = 16 * Rows, kPitch = HeadDim + 4, kWeightPitch = kQueries + 4;
  constexpr int kQuads = HeadDim / 32, kSingles = HeadDim % 32 / 8;  // of the outputs' dims, a thread
  SHARED F4 queries4[kQueries * kPitch / 4];
  SHARED F4 keys4[kTileKeys * kPitch / 4];  // then the softmax's weights of the tile, [kTileKeys][kWeightPitch]
  SHARED F4 values4[kTileValues * kPitch / 4];  // the peaks [kQueries][kPeakPitch] before
  float *queries = (float*)queries4, *keys = (float*)keys4, *weights = keys, *values = (float*)values4, *peaks = values;
  gpu_wait_inputs();
  const int begin = p.segments[bid_z()], n = p.segments[bid_z() + 1] - begin, first = bid_x() * kQueries;
  if (first < n) {  // or else not for the whole block
    const int column = bid_y() * HeadDim, group = tid_x() / kLanes * Rows, lane = tid_x() % kLanes;
    const u64 at = (u64)begin * (u64)p.stride + (u64)column;
    load_head_rows<kQueries, HeadDim>(queries, p.q + at, p.q_bias ? p.q_bias + column : (const float*)0, first, n, p.stride);
    float maximum[Rows], sum[Rows], single[Rows][kSingles + 1];
    F4 acc[Rows][kQuads];
    UNROLL for (int j = 0; j < Rows; j++) {
      maximum[j] = -3.0e38f;
      sum[j] = 0;
      UNROLL for (int i = 0; i < kQuads; i++) acc[j][i] = F4{0, 0, 0, 0};
      UNROLL for (int i = 0; i < kSingles; i++) single[j][i] = 0;
    }
    NO_UNROLL for (int j0 = 0; j0 < n; j0 += kTileKeys) {
      gpu_sync();
      load_head_rows<kTileKeys, HeadDim>(keys, p.k + at, (const float*)0, j0, n, p.stride);
      gpu_sync();
      float score[Rows][kKeys];
      UNROLL for (int j = 0; j < Rows; j++) {
        UNROLL for (int i = 0; i < kKeys; i++) score[j][i] = 0;
      }
      const float *a = queries + group * kPitch, *b = keys + lane * kPitch;
      UNROLL2 for (int d = 0; d < HeadDim; d += 4) {
        F4 query[Rows];
        UNROLL for (int j = 0; j < Rows; j++) query[j] = load_f4(a + j * kPitch + d);
        UNROLL for (int i = 0; i < kKeys; i++) {
          const F4 key = load_f4(b + kLanes * i * kPitch + d);
          UNROLL for (int j = 0; j < Rows; j++) score[j][i] = dot4(query[j], key, score[j][i]);
        }
      }
      UNROLL for (int j = 0; j < Rows; j++) {
        float peak = -3.0e38f;
        UNROLL for (int i = 0; i < kKeys; i++) {
          score[j][i] = j0 + lane + kLanes * i < n ? score[j][i] * p.scale : -3.0e38f;
          peak = gpu_max(peak, score[j][i]);
        }
        peaks[(group + j) * kPeakPitch + lane] = peak;
      }
      gpu_sync();  // the keys were read: weights take their place
      UNROLL for (int j = 0; j < Rows; j++) {
        const F4 low = load_f4(peaks + (group + j) * kPeakPitch), high = load_f4(peaks + (group + j) * kPeakPitch + 4);
        float peak = gpu_max(maximum[j], gpu_max(gpu_max(low.x, low.y), gpu_max(low.z, low.w)));
        peak = gpu_max(peak, gpu_max(gpu_max(high.x, high.y), gpu_max(high.z, high.w)));
        const float factor = gpu_exp2(maximum[j] - peak);
        maximum[j] = peak;
        sum[j] *= factor;
        UNROLL for (int i = 0; i < kKeys; i++) {
          score[j][i] = gpu_exp2(score[j][i] - peak);
          sum[j] += score[j][i];
        }
        UNROLL for (int i = 0; i < kQuads; i++) acc[j][i] = F4{acc[j][i].x * factor, acc[j][i].y * factor, acc[j][i].z * factor, acc[j][i].w * factor};
        UNROLL for (int i = 0; i < kSingles; i++) single[j][i] *= factor;
      }
      UNROLL for (int i = 0; i < kKeys; i++) {
        float of_key[Rows];
        UNROLL for (int j = 0; j < Rows; j++) of_key[j] = score[j][i];
        store_together(weights + (lane + kLanes * i) * kWeightPitch + group, of_key);
      }
      NO_UNROLL for (int v0 = 0; v0 < kTileKeys && j0 + v0 < n; v0 += kTileValues) {
        gpu_sync();
        load_head_rows<kTileValues, HeadDim>(values, p.v + at, (const float*)0, j0 + v0, n, p.stride);
        gpu_sync();
        UNROLL2 for (int key = 0; key < kTileValues; key++) {
          float weight[Rows];
          load_together(weight, weights + (v0 + key) * kWeightPitch + group);
          const float* value = values + key * kPitch;
          UNROLL for (int i = 0; i < kQuads; i++) {
            const F4 v = load_f4(value + 32 * i + 4 * lane);
            UNROLL for (int j = 0; j < Rows; j++) add_scaled(acc[j][i], v, weight[j]);
          }
          UNROLL for (int i = 0; i < kSingles; i++) {
            const float v = value[32 * kQuads + kLanes * i + lane];
            UNROLL for (int j = 0; j < Rows; j++) single[j][i] = gpu_fma(weight[j], v, single[j][i]);
          }
        }
      }
    }
    gpu_sync();
    UNROLL for (int j = 0; j < Rows; j++) peaks[(group + j) * kPeakPitch + lane] = sum[j];
    gpu_sync();
    UNROLL for (int j = 0; j < Rows; j++) {
      const F4 low = load_f4(peaks + (group + j) * kPeakPitch), high = load_f4(peaks + (group + j) * kPeakPitch + 4);
      const float inverse = 1.0f / (low.x + low.y + (low.z + low.w) + (high.x + high.y + (high.z + high.w)));
      const int row = first + group + j;
      if (row >= n) continue;
      const u64 to = (u64)(begin + row) * (u64)p.width + (u64)column;
      UNROLL for (int i = 0; i < kQuads; i++) {
        const int c = 32 * i + 4 * lane;
        F4 bias = {0, 0, 0, 0};  // of the values: weights sum to one
        if (p.v_bias) bias = load_f4(p.v_bias + column + c);
        const F4 v = {gpu_fma(acc[j][i].x, inverse, bias.x), gpu_fma(acc[j][i].y, inverse, bias.y), gpu_fma(acc[j][i].z, inverse, bias.z),
                      gpu_fma(acc[j][i].w, inverse, bias.w)};
        store_f4(p.out + to + c, v);
        if (p.twin) store_twin(p.twin + to + c, v);
      }
      UNROLL for (int i = 0; i < kSingles; i++) {
        const int c = 32 * kQuads + 8 * i + lane;
        const float v = gpu_fma(single[j][i], inverse, p.v_bias ? p.v_bias[column + c] : 0.0f);
        p.out[to + c] = v;
        if (p.twin) p.twin[to + c] = f32_to_bf16(v);
      }
    }
  }
}
