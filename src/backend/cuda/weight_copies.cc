#include "backend/cuda/weight_copies.h"

#include <algorithm>

#include "backend/cuda/cuda_weight.h"
#include "base/log.h"

namespace heirloom::cuda {

WeightCopies::Copy WeightCopies::of(std::span<const CudaWeight* const> joined) {
  for (auto [at, end] = kept_.equal_range(joined[0]); at != end; ++at) {
    if (std::ranges::equal(at->second.joined, joined)) return {at->second.data, false};
  }
  std::uint64_t bytes = 0;
  for (const CudaWeight* weight : joined) {
    if (weight->experts != 1) return {};
    bytes += static_cast<std::uint64_t>(weight->rows) * static_cast<std::uint64_t>(weight->cols) * element_bytes_;
  }
  if (!enabled_ || device_.used_bytes() + bytes > device_.ceiling_bytes() / 16 * 13) return {};
  void* data = device_.try_alloc(bytes);
  if (data == nullptr) return {};
  kept_.emplace(joined[0], Kept{{joined.begin(), joined.end()}, data, bytes});
  bytes_ += bytes;
  return {data, true};
}

void WeightCopies::forget(const CudaWeight& weight) noexcept {
  for (auto at = kept_.begin(); at != kept_.end();) {
    const auto here = at++;
    if (std::ranges::find(here->second.joined, &weight) == here->second.joined.end()) continue;
    device_.free(here->second.data);
    bytes_ -= here->second.bytes;
    kept_.erase(here);
  }
}

bool WeightCopies::drop() {
  enabled_ = false;
  if (kept_.empty()) return false;
  device_.synchronize(Lane::compute);
  log::info("GPU memory is short: {} MiB of unpacked copies of weights are given up, prompts unpack weights at each use", bytes_ >> 20);
  for (const auto& [weight, kept] : kept_) device_.free(kept.data);
  kept_.clear();
  bytes_ = 0;
  return true;
}

}  // namespace heirloom::cuda
