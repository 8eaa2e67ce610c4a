// What the kernels of half a layer have in common: they run in clusters of 8 blocks, and each cluster reads the residual stream for
// itself. A warp takes 32 values: x and the parts in order, the sum of squares, the values times the norm's weight as int8 with their
// scale, and sends all that to the shared memory of the cluster's blocks. The RMS scale is not known yet: products are linear in it, so
// it multiplies their sums. Rows of weights are copied to shared memory before the inputs are there, while the kernel before runs: at
// 512 threads and at most 64 registers two kernels fit a multiprocessor, and the copies hold no registers. Such a kernel is bound by
// how many instructions it issues (ncu on an H200), hence: copies by the copy engine, warps without work skip, 32-bit addresses.
#pragma once

#include "backend/cuda/kernels/async_copy.h"
#include "backend/cuda/kernels/gemv_rows.h"
#include "backend/cuda/kernels/layer_args.h"
#include "backend/cuda/kernels/warp_formats.h"
#include "backend/cuda/kernels/warp_sums.h"

constexpr int kLayerWarps = kLayerThreads / 32;

/// 32 values of a warp as int8: each lane has the word of its four lanes; `block` (scale, sums of all, of the first and of the last 16)
/// is right in lanes 0 to 15.
struct QuantisedGroup {
  u32 word;
  F4 block;
};
DEVICE QuantisedGroup quantise_group(float v, int lane) {
  const float largest = warp_largest(gpu_abs(v));
  const float inverse = largest > 1e-30f ? 127.0f * gpu_reciprocal_approx(largest) : 0.0f;
  const u32 own = as_u32(v * inverse + 12582912.0f) & 0xff;  // 1.5 * 2^23: the low byte is the nearest integer
  const u32 next = as_u32(gpu_shuffle_xor(as_f32(own), 1));
  const u32 two = lane & 1 ? next | own << 8 : own | next << 8;
  const u32 other_two = as_u32(gpu_shuffle_xor(as_f32(two), 2));
  QuantisedGroup q;
  q.word = lane & 2 ? other_two | two << 16 : two | other_two << 16;
  float sum = (float)gpu_dp4a(q.word, 0x01010101u, 0);
  sum += gpu_shuffle_xor(sum, 4);
  sum += gpu_shuffle_xor(sum, 8);
  const float other = gpu_shuffle_xor(sum, 16);
  q.block = F4{largest * (1.0f / 127.0f), sum + other, sum, other};
  return q;
}
DEVICE void store_block(F4* to, F4 v) {
  to->x = v.x;
  to->y = v.y;
  to->z = v.z;
  to->w = v.w;
}

/// Group `group` of a row that this block keeps.
DEVICE void store_group(const Int8Row& row, int group, const QuantisedGroup& q, int lane) {
  if ((lane & 3) == 0) row.words[Int8Row::swizzle(2 * group + (lane >> 4)) * 4 + (lane >> 2 & 3)] = q.word;
  if (lane == 0) store_block(row.blocks + group, q.block);
}

/// Mailboxes of a block: rows of weights; the input; what is made of it; the gated outputs of a delta rule.
struct LayerMail {
  Mailbox rows, input, made, gated;
};
/// Expects them, by thread 0.
DEVICE void layer_expect(LayerMail* mail, int rows, int input, int made, int gated) {
  gpu_expect(&mail->rows, rows);
  gpu_expect(&mail->input, input);
  gpu_expect(&mail->made, made);
  gpu_expect(&mail->gated, gated);
}

/// What of the input lies in a block's shared memory.
struct LayerX {
  Int8Row row;
  float* squares;  // [groups]
  /// Bytes that layer_input sends to each block.
  DEVICE_M int sent(const LayerInput& in) const { return in.hidden + in.groups * 20; }
};
/// Before the inputs are there: the norm's weight of the value that this lane takes.
DEVICE float layer_norm_weight(const LayerInput& in, int rank) {
  const int group = rank + kLayerCluster * (tid_x() >> 5), lane = tid_x() & 31;
  return in.norm_weight[gpu_min_i(group, in.groups - 1) * 32 + lane];
}
/// Two products with the normed row that are made on the way, a value a lane (a delta rule's gates): partial sums by groups.
struct LayerGates {
  float a, b;      // weights of the value that this lane takes
  float* a_parts;  // [groups], or null: none
  float* b_parts;
};
/// Sends X to all blocks of the cluster. Returns this lane's value times the norm's weight.
DEVICE float layer_input(const LayerInput& in, const LayerX& x, float norm_weight, int rank, bool writes_sum, const LayerGates& gates,
                         Mailbox* box) {
  const int lane = tid_x() & 31, group = rank + kLayerCluster * (tid_x() >> 5), at = gpu_min_i(group, in.groups - 1) * 32 + lane;
  const bool inside = group < in.groups;
  float weighted = 0;
  if (!gpu_warp_has(inside)) return weighted;
  float part[kLayerParts], v = in.x[at];
  const float* from = in.partials + at;
  UNROLL for (int p = 0; p < kLayerParts; p++) {
    part[p] = p < in.parts ? *from : 0.0f;
    from += in.hidden;
  }
  UNROLL for (int p = 0; p < kLayerParts; p++) v += part[p];
  if (writes_sum && inside && in.sum) in.sum[at] = v;
  weighted = v * norm_weight;
  const float squares = warp_total(v * v);
  const QuantisedGroup q = quantise_group(weighted, lane);
  float a = 0, b = 0;
  if (gates.a_parts) {
    a = warp_total(weighted * gates.a);
    b = warp_total(weighted * gates.b);
  }
  if (!inside) return weighted;
  float* word = (float*)x.row.words + Int8Row::swizzle(2 * group + (lane >> 4)) * 4 + (lane >> 2 & 3);
  gpu_send(word, lane & 3, as_f32(q.word), box);
  gpu_send(word, (lane & 3) + 4, as_f32(q.word), box);
  if (lane < kLayerCluster) {
    gpu_send(x.squares + group, lane, squares, box);
    gpu_send(x.row.blocks + group, lane, q.block, box);
    if (gates.a_parts) {
      gpu_send(gates.a_parts + group, lane, a, box);
      gpu_send(gates.b_parts + group, lane, b, box);
    }
  }
  return weighted;
}
/// The sum of a value for each group, to every lane of a warp.
DEVICE float sum_of_groups(const float* values, int groups) {
  const int lane = tid_x() & 31;
  float sum = 0;
  NO_UNROLL for (int i = lane; i < groups; i += 32) sum += values[i];
  return warp_total(sum);
}
/// Once the input is there: rsqrt(mean(x^2) + eps).
DEVICE float layer_scale(const LayerInput& in, const LayerX& x) {
  return gpu_rsqrt_approx(gpu_fma(sum_of_groups(x.squares, in.groups), in.inverse_hidden, in.eps));
}

// ---- rows of weights in shared memory ----

/// Rows of k weights each; planes of the type (weight_formats.h) follow each other, as in a weight of `rows` rows.
template <class F> struct StagedRows;
template <> struct StagedRows<WarpQ8_0> {
  static constexpr int kPlanes = 2;
  const u8* data;
  int rows, k;
  DEVICE_M static int bytes(int plane, int k) { return plane == 0 ? k : k / 16; }
  DEVICE_M static u64 start(int plane, u64 elements) { return plane == 0 ? 0 : elements; }
  DEVICE_M WarpQ8_0::Raw load(int row, int group) const {
    const u8* code = data + row * k + group * 32;
    return {load16(code), load16(code + 16), *(const u16*)(data + rows * k + row * (k / 16) + group * 2)};
  }
};
template <> struct StagedRows<WarpQ4_0> {
  static constexpr int kPlanes = 2;
  const u8* data;
  int rows, k;
  DEVICE_M static int bytes(int plane, int k) { return plane == 0 ? k / 2 : k / 16; }
  DEVICE_M static u64 start(int plane, u64 elements) { return plane == 0 ? 0 : elements / 2; }
  DEVICE_M WarpQ4_0::Raw load(int row, int group) const {
    return {load16(data + row * (k / 2) + group * 16), *(const u16*)(data + rows * (k / 2) + row * (k / 16) + group * 2)};
  }
};

/// Starts the copy of rows [row, row + count) of a weight to rows `to`... of `staged`, by one thread. A row's part of a plane is a multiple
/// of 16 bytes.
template <class F>
DEVICE void stage_rows(const StagedRows<F>& staged, int to, const LayerWeight& from, int row, int count, Mailbox* box) {
  UNROLL for (int plane = 0; plane < StagedRows<F>::kPlanes; plane++) {
    const int bytes = StagedRows<F>::bytes(plane, staged.k);
    const u8* source = from.data + StagedRows<F>::start(plane, from.elements) + (u64)(u32)row * (u64)(u32)bytes;
    u8* target = (u8*)staged.data + (int)StagedRows<F>::start(plane, (u64)(u32)(staged.rows * staged.k)) + to * bytes;
    gpu_send_global(target, source, bytes * count, box);
  }
}
/// Bytes of `rows` staged rows.
template <class F>
DEVICE int staged_bytes(int rows, int k) {
  int bytes = 0;
  UNROLL for (int plane = 0; plane < StagedRows<F>::kPlanes; plane++) bytes += StagedRows<F>::bytes(plane, k) * rows;
  return bytes;
}

/// Products of 4 rows with x, before the RMS scale: lane l gets row(l & 3). The warps of a split take every `parts`-th step, and
/// their sums are to be added.
template <class F, class Row>
DEVICE float four_products(const StagedRows<F>& rows, const Row& row, const LayerX& x, int part, int parts) {
  constexpr int R = kGemvRows;
  const int lane = tid_x() & 31, groups = rows.k / F::kGroup;
  float acc[R];
  UNROLL for (int r = 0; r < R; r++) acc[r] = 0;
  NO_UNROLL for (int g = 32 * part + lane; g < groups; g += 32 * parts) {
    UNROLL for (int r = 0; r < R; r++) {
      const typename F::Raw w = rows.load(row(r), g);
      acc[r] += F::dot(w, x.row, g);
    }
  }
  return warp_sums(acc[0], acc[1], acc[2], acc[3], lane);
}

// ---- the output: a cluster's share of the columns ----

/// partial[row] = the products of the cluster's columns with `row` of `weight`, for the rows of this block: hidden / 8 from
/// rank * hidden / 8 on. `column_group(i)`: group of 32 columns of the weight for group i of the cluster's `groups`. Threads share a
/// row by 2^shift, one group each. prefetch() loads the first kAhead turns of rows, before the inputs
/// are there: later these loads would stand in the way of theirs.
template <class F, int kAhead, class ColumnGroup>
struct LayerOutput {
  const LayerWeight& weight;
  const ColumnGroup& column_group;
  int columns, hidden, groups, shift, rank;
  typename F::Raw ahead[kAhead];

  DEVICE_M int row_of(int turn) const { return (turn * kLayerThreads + tid_x()) >> shift; }
  DEVICE_M int group_of() const { return gpu_min_i(tid_x() & ((1 << shift) - 1), groups - 1); }
  DEVICE_M u64 row_start(int turn) const {
    const int row = rank * (hidden / kLayerCluster) + gpu_min_i(row_of(turn), hidden / kLayerCluster - 1);
    return (u64)(u32)row * (u64)(u32)columns;
  }
  DEVICE_M typename F::Raw load(int turn) const {
    return F::load(WeightView{weight.data, weight.elements}, row_start(turn), column_group(group_of()));
  }
  DEVICE_M void prefetch() {
    UNROLL for (int i = 0; i < kAhead; i++) ahead[i] = load(i);
  }
  DEVICE_M void write(int turn, const typename F::Raw& w, const Int8Row& x, float* partial) const {
    const int i = tid_x() & ((1 << shift) - 1);
    float sum = i < groups ? F::dot(w, x, i) : 0.0f;
    NO_UNROLL for (int mask = 1; mask < 1 << shift; mask *= 2) sum += gpu_shuffle_xor(sum, mask);
    if (i == 0 && row_of(turn) < hidden / kLayerCluster) partial[rank * (hidden / kLayerCluster) + row_of(turn)] = sum;
  }
  DEVICE_M void finish(const Int8Row& x, float* partial) const {
    const int turns = ((hidden / kLayerCluster << shift) + kLayerThreads - 1) / kLayerThreads;
    UNROLL for (int i = 0; i < kAhead; i++) {
      if (i < turns) write(i, ahead[i], x, partial);
    }
    NO_UNROLL for (int turn = kAhead; turn < turns; turn++) write(turn, load(turn), x, partial);
  }
};
