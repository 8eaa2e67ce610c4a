#include "backend/cpu/kernels/moe/expert_groups.h"

#include <cmath>

namespace heirloom::cpu {

void route_top_k(ThreadPool& pool, const float* logits, std::int64_t rows, std::int64_t num_experts, int top_k,
                 std::int32_t* ids, float* weights) {
  pool.parallel_for(rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = logits + r * num_experts;
      std::int32_t* chosen = ids + r * top_k;
      // Insertion into a short sorted list. Softmax keeps the order, so logits are compared; the strict comparison keeps the
      // lower index first among equals.
      int count = 0;
      for (std::int64_t e = 0; e < num_experts; ++e) {
        if (count == top_k && !(row[e] > row[chosen[count - 1]])) continue;
        int at = count < top_k ? count++ : count - 1;
        for (; at > 0 && row[e] > row[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
        chosen[at] = static_cast<std::int32_t>(e);
      }
      // The softmax's denominator cancels in the renormalisation.
      float sum = 0.0f;
      for (int i = 0; i < top_k; ++i) {
        weights[r * top_k + i] = std::exp(row[chosen[i]] - row[chosen[0]]);
        sum += weights[r * top_k + i];
      }
      for (int i = 0; i < top_k; ++i) weights[r * top_k + i] /= sum;
    }
  });
}

void ExpertGroups::build(const std::int32_t* ids, const float* weights, std::int64_t tokens, int top_k,
                         std::int64_t num_experts) {
  const auto slots = static_cast<std::size_t>(tokens * top_k);
  next_.assign(static_cast<std::size_t>(num_experts), 0);
  for (std::size_t i = 0; i < slots; ++i) ++next_[static_cast<std::size_t>(ids[i])];
  groups_.clear();
  std::int64_t first = 0;
  for (std::size_t e = 0; e < next_.size(); ++e) {
    const std::int64_t count = next_[e];
    next_[e] = first;
    if (count != 0) groups_.push_back({static_cast<std::int32_t>(e), first, count});
    first += count;
  }
  tokens_.resize(slots);
  choices_.resize(slots);
  weights_.resize(slots);
  for (std::size_t i = 0; i < slots; ++i) {
    const auto slot = static_cast<std::size_t>(next_[static_cast<std::size_t>(ids[i])]++);
    tokens_[slot] = static_cast<std::int32_t>(i / static_cast<std::size_t>(top_k));
    choices_[slot] = static_cast<std::int32_t>(i);
    weights_[slot] = weights[i];
  }
}

}  // namespace heirloom::cpu
