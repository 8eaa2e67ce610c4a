#include "backend/cuda/bf16_copies.h"

#include "backend/cuda/cuda_weight.h"
#include "base/log.h"

namespace heirloom::cuda {

Bf16Copies::Copy Bf16Copies::of(const CudaWeight& weight) {
  if (const auto found = kept_.find(&weight); found != kept_.end()) return {static_cast<unsigned short*>(found->second.data), false};
  const std::uint64_t bytes = static_cast<std::uint64_t>(weight.rows) * static_cast<std::uint64_t>(weight.cols) * 2;
  if (!enabled_ || weight.experts != 1 || device_.used_bytes() + bytes > device_.ceiling_bytes() / 2) return {};
  void* data = device_.try_alloc(bytes);
  if (data == nullptr) return {};
  kept_[&weight] = {data, bytes};
  bytes_ += bytes;
  return {static_cast<unsigned short*>(data), true};
}

void Bf16Copies::forget(const CudaWeight& weight) noexcept {
  const auto found = kept_.find(&weight);
  if (found == kept_.end()) return;
  device_.free(found->second.data);
  bytes_ -= found->second.bytes;
  kept_.erase(found);
}

bool Bf16Copies::drop() {
  enabled_ = false;
  if (kept_.empty()) return false;
  device_.synchronize(Lane::compute);
  log::info("GPU memory is short: {} MiB of BF16 copies of weights are given up, prompts unpack weights at each use", bytes_ >> 20);
  for (const auto& [weight, kept] : kept_) device_.free(kept.data);
  kept_.clear();
  bytes_ = 0;
  return true;
}

}  // namespace heirloom::cuda
