// The experts of one token, chosen by each block for itself from the router's logits: as moe_route does, the lower index first among
// equals, without a launch of its own.
#pragma once

#include "backend/cuda/kernels/token_input.h"

/// What a block keeps of the choice.
struct ExpertChoice {
  F4* logits;    // [padded / 4]
  int* ids;      // [kExpertMaxChosen]
  float* chosen;  // [kExpertMaxChosen] their logits, the largest first
  static constexpr int kBytes = 2 * 4 * kExpertMaxChosen;  // besides the logits
  DEVICE_M static ExpertChoice at(u8* memory, int padded) {
    int* ids = (int*)(memory + 4 * padded);
    return ExpertChoice{(F4*)memory, ids, (float*)(ids + kExpertMaxChosen)};
  }
};

/// By all threads of the block, a multiple of 32; there after a barrier. `padded`: experts rounded up to 16.
DEVICE void choose_experts(const ExpertChoice& choice, const float* logits, int experts, int padded, int top_k) {
  const int t = tid_x(), each = ntid_x() / 4, part = t & 3;
  float* p = (float*)choice.logits;
  for (int i = t; i < padded; i += ntid_x()) {
    const float v = i < experts ? gpu_load_l2(logits + i) : -3.4e38f;
    p[i] = v >= -3.0e38f ? v : i < experts ? -3.0e38f : -3.4e38f;  // NaN: any experts, the result is NaN anyway
  }
  gpu_sync();
  for (int first = 0; first < experts; first += each) {
    const int e = first + (t >> 2);
    const float mine = p[gpu_min_i(e, padded - 1)];
    int before = 0;  // of the experts in every fourth quad
    UNROLL4 for (int j = part; j < padded / 4; j += 4) {
      const F4 v = choice.logits[j];
      before += v.x > mine || (v.x == mine && 4 * j < e);
      before += v.y > mine || (v.y == mine && 4 * j + 1 < e);
      before += v.z > mine || (v.z == mine && 4 * j + 2 < e);
      before += v.w > mine || (v.w == mine && 4 * j + 3 < e);
    }
    float rank = (float)before;
    rank += gpu_shuffle_xor(rank, 1);
    rank += gpu_shuffle_xor(rank, 2);
    if (part == 0 && e < experts && rank < (float)top_k) {
      choice.ids[(int)rank] = e;
      choice.chosen[(int)rank] = mine;
    }
  }
}
/// The weight of the chosen expert `slot`: softmax over the chosen.
DEVICE float choice_weight(const ExpertChoice& choice, int slot, int top_k) {
  float total = 0;
  for (int i = 0; i < top_k; i++) total += gpu_exp(choice.chosen[i] - choice.chosen[0]);
  return gpu_exp(choice.chosen[slot] - choice.chosen[0]) / total;
}
