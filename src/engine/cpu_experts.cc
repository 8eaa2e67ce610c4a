#include "engine/cpu_experts.h"

#include "backend/cpu/weight/packed_weight.h"

namespace heirloom::engine {
namespace {

// As the GPU's kernels name the CPU's layouts (backend/cuda/kernels/panel_rows.h).
const char* layout_name(cpu::PackedType type) {
  switch (type) {
    case cpu::PackedType::q4_0: return "q4_0";
    case cpu::PackedType::q8_0: return "q8_0";
    case cpu::PackedType::q8_x: return "q8_x";
    case cpu::PackedType::q4_k: return "q4_k";
    case cpu::PackedType::q5_k: return "q5_k";
    case cpu::PackedType::q6_k: return "q6_k";
    case cpu::PackedType::f32: return "f32";
    case cpu::PackedType::f16: return "f16";
    case cpu::PackedType::bf16: return "bf16";
  }
  return "";
}

}  // namespace

std::unique_ptr<cuda::PanelExperts> CpuExperts::load(const ops::WeightData& data) {
  auto experts = std::make_unique<cuda::PanelExperts>();
  experts->on_cpu = cpu_->load_weight(data);
  const auto& packed = static_cast<const cpu::PackedWeight&>(*experts->on_cpu);
  experts->type = packed.type;
  experts->experts = packed.experts;
  experts->rows = packed.rows;
  experts->cols = packed.cols;
  experts->bytes = packed.bytes;
  experts->host = packed.data();
  experts->host_bytes = packed.bytes;
  experts->layout = layout_name(packed.packed_type);
  experts->panels = packed.panels;
  experts->panel_bytes = packed.panel_bytes;
  return experts;
}

void CpuExperts::run(const cuda::HostExpertCall& call) {
  const std::int64_t hidden = call.gate->cols;
  cpu_->routed_experts({const_cast<float*>(call.x), call.rows, hidden}, *call.gate->on_cpu, *call.up->on_cpu, *call.down->on_cpu,
                       call.top_k, call.ids, call.weights, {call.out, call.rows, hidden});
}

}  // namespace heirloom::engine
