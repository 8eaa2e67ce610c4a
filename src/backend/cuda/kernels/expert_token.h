// The chosen experts and the shared one for one token, in two kernels.
//   expert_hidden: silu(gate) * up of all of them. A warp takes two inner values (four rows) of one expert; the rows of the shared one
//     are on their way before the choice is known, the normed input is in shared memory by then.
//   expert_sum: `down`, weighted and summed over the experts in order, with the residual stream. Which experts it is can be told while
//     expert_hidden runs, so their weights are in registers when its outputs are there.
#pragma once

#include "backend/cuda/kernels/expert_choice.h"
#include "backend/cuda/kernels/layer_input.h"

/// `a` or `b`, by arithmetic: a choice becomes one between the arguments' addresses, which puts them in local memory.
DEVICE LayerWeight chosen_weight(bool first, const LayerWeight& a, const LayerWeight& b) {
  const u64 mask = 0 - (u64)first;
  return LayerWeight{b.data + ((u64)(a.data - b.data) & mask), b.elements + ((a.elements - b.elements) & mask)};
}

/// Starts the copy of rows `row` and `row` + 1 of gate and of up to a warp's four staged rows: gate, up, gate, up.
template <class F>
DEVICE void copy_rows_of_warp(const StagedRows<F>& staged, const LayerWeight& gate, const LayerWeight& up, u64 row) {
  const int lane = tid_x() & 31;
  UNROLL for (int plane = 0; plane < StagedRows<F>::kPlanes; plane++) {
    const int bytes = StagedRows<F>::bytes(plane, staged.k);
    const u8* from_gate = gate.data + StagedRows<F>::start(plane, gate.elements) + row * (u64)(u32)bytes;
    const u8* from_up = up.data + StagedRows<F>::start(plane, up.elements) + row * (u64)(u32)bytes;
    u8* to = (u8*)staged.data + (int)StagedRows<F>::start(plane, (u64)(u32)(4 * staged.k));
    NO_UNROLL for (int i = 16 * lane; i < bytes; i += 16 * 32) {
      gpu_copy16_async(to + i, from_gate + i);
      gpu_copy16_async(to + bytes + i, from_up + i);
      gpu_copy16_async(to + 2 * bytes + i, from_gate + bytes + i);
      gpu_copy16_async(to + 3 * bytes + i, from_up + bytes + i);
    }
  }
}

template <class F>
DEVICE void expert_hidden(const ExpertHiddenArgs& p, u8* memory) {
  const int t = tid_x(), lane = t & 31, warp = t >> 5, threads = ntid_x(), k = p.k, quads = k / 4;
  const ExpertChoice choice = ExpertChoice::at(memory, p.padded);
  float* squares = (float*)(memory + 4 * p.padded + ExpertChoice::kBytes);  // [kExpertSquares]
  u8* next = (u8*)(squares + kExpertSquares);
  const Int8Row x = Int8Row::at(next, k);
  next += Int8Row::bytes(k);
  const StagedRows<F> staged{next + 4 * warp * staged_bytes<F>(1, k), 4, k};  // this warp's

  const int per_slot = p.inner / 2;
  const auto slot_of = [&](int unit) { return unit / per_slot; };
  int unit = gpu_min_i(warp * nbid_x() + bid_x(), p.units - 1);
  const bool early = slot_of(unit) == p.chosen;  // of the shared expert
  if (early) copy_rows_of_warp<F>(staged, p.shared_gate, p.shared_up, (u64)(u32)(2 * (unit - p.chosen * per_slot)));
  const TokenQuads weight = token_quads([&](int i) { return ((const F4*)p.norm_weight)[i]; }, quads, threads);
  const TokenQuads in = token_quads([&](int i) { return gpu_load_l2((const F4*)p.x + i); }, quads, threads);
  token_stage_normed(in, weight, x, squares, quads, threads);

  gpu_wait_inputs();
  gpu_let_next_start();  // after the wait: the next kernel reads the logits before its own
  choose_experts(choice, p.logits, p.experts, p.padded, p.chosen);
  gpu_sync();
  const float scale = token_scale(squares, threads / 32, p.inverse_k, p.eps);
  NO_UNROLL for (int turn = 0; turn < p.turns; turn++) {
    const int wanted = (turn * (threads / 32) + warp) * nbid_x() + bid_x();
    unit = gpu_min_i(wanted, p.units - 1);
    const int slot = slot_of(unit), value = 2 * (unit - slot * per_slot);
    if (turn > 0) gpu_sync_warp();  // the rows before have been read
    if (turn > 0 || !early) {
      const bool shared = slot == p.chosen;
      const int expert = shared ? 0 : choice.ids[slot];
      copy_rows_of_warp<F>(staged, chosen_weight(shared, p.shared_gate, p.gate), chosen_weight(shared, p.shared_up, p.up), (u64)(u32)expert * (u64)(u32)p.inner + (u64)(u32)value);
    }
    gpu_wait_copies();
    gpu_sync_warp();
    float acc[4] = {0, 0, 0, 0};
    NO_UNROLL for (int g = lane; g < p.groups; g += 32) {
      UNROLL for (int r = 0; r < 4; r++) acc[r] += F::dot(staged.load(r, g), x, g);
    }
    const float v = warp_sums(acc[0], acc[1], acc[2], acc[3], lane) * scale, gate = gpu_shuffle_xor(v, 1);
    if (lane < 4 && (lane & 1) && wanted < p.units) p.hidden[slot * p.inner + value + (lane >> 1)] = gpu_silu(gate) * v;
  }
}

template <class F>
DEVICE void expert_sum(const ExpertSumArgs& p, u8* memory) {
  const int t = tid_x(), lane = t & 31, warp = t >> 5, threads = ntid_x(), values = p.slots * p.inner, quads = values / 4;
  const ExpertChoice choice = ExpertChoice::at(memory, p.padded);
  const int at_once = 32 >> p.lanes_shift, rows_of_warp = kExpertPasses * at_once, rows_of_block = p.slot_warps * rows_of_warp;
  float* partial = (float*)(memory + 4 * p.padded + ExpertChoice::kBytes);  // [slots][rows_of_block]
  const Int8Row x = Int8Row::at((u8*)(partial + p.slots * rows_of_block), values);

  const int slot = warp / p.slot_warps, group = lane & ((1 << p.lanes_shift) - 1), sub = lane >> p.lanes_shift;
  const int local = (warp - slot * p.slot_warps) * rows_of_warp + sub, first = bid_x() * rows_of_block;  // pass i: local + i * at_once
  choose_experts(choice, p.logits, p.experts, p.padded, p.chosen);
  gpu_sync();
  const bool shared = slot >= p.chosen;
  const float weight = shared ? gpu_sigmoid(gpu_load_l2(p.logits + p.experts)) : choice_weight(choice, slot, p.chosen);
  const LayerWeight down = chosen_weight(shared, p.shared, p.down);
  const u64 start = shared ? 0 : (u64)(u32)choice.ids[slot] * (u64)(u32)p.rows;
  typename F::Raw w[kExpertPasses];
  UNROLL for (int i = 0; i < kExpertPasses; i++) {
    const u64 row = start + (u64)(u32)gpu_min_i(first + local + i * at_once, p.rows - 1);
    w[i] = F::load(WeightView{down.data, down.elements}, row * (u64)(u32)p.inner, gpu_min_i(group, p.groups - 1));
  }

  gpu_let_next_start();  // behind these weights
  gpu_wait_inputs();
  const int finishes = first + t;  // the row that this thread finishes
  const bool mine = t < rows_of_block && finishes < p.rows;
  const float residual = mine && p.residual ? p.residual_from[finishes] : 0.0f;
  for (int i = t; i - t < quads; i += 2 * threads) {
    const F4 v0 = ((const F4*)p.hidden)[gpu_min_i(i, quads - 1)], v1 = ((const F4*)p.hidden)[gpu_min_i(i + threads, quads - 1)];
    x.store(i, v0, i < quads);
    x.store(i + threads, v1, i + threads < quads);
  }
  gpu_sync();
  float v[kExpertPasses];
  const bool inside = group < p.groups;
  UNROLL for (int i = 0; i < kExpertPasses; i++) v[i] = inside ? F::dot(w[i], x, slot * p.groups + gpu_min_i(group, p.groups - 1)) : 0.0f;
  // Lane l of those of a row gets pass l & 3.
  const bool odd = lane & 1, upper = lane & 2;
  float a = odd ? v[1] : v[0], b = odd ? v[3] : v[2];
  a += gpu_shuffle_xor(odd ? v[0] : v[1], 1);
  b += gpu_shuffle_xor(odd ? v[2] : v[3], 1);
  float sum = upper ? b : a;
  sum += gpu_shuffle_xor(upper ? a : b, 2);
  NO_UNROLL for (int mask = 4; mask < 1 << p.lanes_shift; mask *= 2) sum += gpu_shuffle_xor(sum, mask);
  if (group < 4) partial[slot * rows_of_block + local + group * at_once] = sum * weight;
  gpu_sync();
  if (!mine) return;
  float total = partial[t];
  for (int i = 1; i < p.slots; i++) total += partial[i * rows_of_block + t];
  if (p.out) p.out[finishes] = total;
  if (p.residual) p.residual[finishes] = residual + total;
}
