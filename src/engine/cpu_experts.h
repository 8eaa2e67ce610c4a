// Experts of a model whose weights exceed the GPU's memory: packed once in host memory, where the CPU backend computes steps of few
// rows and from where prompts stream them to the GPU.
#pragma once

#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/expert_host.h"

namespace heirloom::engine {

class CpuExperts final : public cuda::ExpertHost {
 public:
  explicit CpuExperts(std::unique_ptr<cpu::CpuBackend> cpu) : cpu_(std::move(cpu)) {}

  std::unique_ptr<cuda::PanelExperts> load(const ops::WeightData& data) override;
  void run(const cuda::HostExpertCall& call) override;
  std::string description() const override { return cpu_->description(); }

 private:
  std::unique_ptr<cpu::CpuBackend> cpu_;
};

}  // namespace heirloom::engine
