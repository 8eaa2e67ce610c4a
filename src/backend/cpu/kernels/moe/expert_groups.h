// Tokens sorted by the experts they chose, so that every expert's weights are read once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace heirloom::cpu {

/// Softmax over all experts in float32, the top_k largest (ties: lower index first), renormalised to sum 1.
///   logits [rows, num_experts]; ids, weights [rows, top_k] by descending probability
void route_top_k(ThreadPool& pool, const float* logits, std::int64_t rows, std::int64_t num_experts, int top_k,
                 std::int32_t* ids, float* weights);

/// The (token, choice) pairs of a call sorted by expert, then by token. Keeps its memory between calls.
class ExpertGroups {
 public:
  struct Group {
    std::int32_t expert;
    std::int64_t first, count;  // slots
  };

  /// ids, weights [tokens, top_k] as route_top_k gives them.
  void build(const std::int32_t* ids, const float* weights, std::int64_t tokens, int top_k, std::int64_t num_experts);

  /// The experts that were chosen at all, ascending.
  std::span<const Group> groups() const { return groups_; }
  std::span<const std::int32_t> tokens(const Group& group) const { return slice(tokens_, group); }
  std::span<const float> weights(const Group& group) const { return slice(weights_, group); }
  /// Index of each slot in ids: token * top_k + rank.
  std::span<const std::int32_t> choices(const Group& group) const { return slice(choices_, group); }

 private:
  template <typename T>
  static std::span<const T> slice(const std::vector<T>& values, const Group& group) {
    return std::span(values).subspan(static_cast<std::size_t>(group.first), static_cast<std::size_t>(group.count));
  }
  std::vector<Group> groups_;
  std::vector<std::int32_t> tokens_, choices_;
  std::vector<float> weights_;
  std::vector<std::int64_t> next_;
};

}  // namespace heirloom::cpu
