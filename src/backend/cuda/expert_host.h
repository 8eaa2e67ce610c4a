// What computes experts that stay in host memory when a step has few rows: then moving their activations to the CPU costs less
// than moving their weights to the GPU. The engine implements it over the CPU backend; this backend knows none.
#pragma once

#include <memory>
#include <string>

#include "backend/cuda/expert_stream.h"
#include "ops/backend.h"

namespace heirloom::cuda {

/// Host pointers. out[r] = sum over i of weights[r][i] * down_e(silu(gate_e x[r]) * up_e x[r]), e = ids[r][i].
struct HostExpertCall {
  const float* x;              // [rows, hidden]
  const std::int32_t* ids;     // [rows, top_k]
  const float* weights;        // [rows, top_k]
  float* out;                  // [rows, hidden]
  int rows, top_k;
  const PanelExperts *gate, *up, *down;
};

class ExpertHost {
 public:
  virtual ~ExpertHost() = default;
  /// Packs the experts of `data` (more than one) into host memory.
  virtual std::unique_ptr<PanelExperts> load(const ops::WeightData& data) = 0;
  virtual void run(const HostExpertCall& call) = 0;
  virtual std::string description() const = 0;
};

}  // namespace heirloom::cuda
