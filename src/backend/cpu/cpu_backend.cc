#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "backend/cpu/kernels/elementwise/elementwise.h"
#include "backend/cpu/kernels/linear/linear.h"
#include "backend/cpu/kernels/moe/moe_experts.h"
#include "backend/cpu/kernels/norm/norm.h"
#include "backend/cpu/kernels/rows/rows.h"
#include "backend/cpu/weight/packed_weight.h"
#include "base/check.h"

namespace heirloom::cpu {

using ops::Matrix;

CpuBackend::CpuBackend(const CpuBackendOptions& options)
    : pool_(options.threads), tier_(options.tier), profiler_(options.profiler), interleave_weights_(options.interleave_weights) {
  HEIRLOOM_CHECK(tier_ <= best_cpu_tier());
}

CpuBackend::~CpuBackend() = default;

void* CpuBackend::alloc(std::size_t bytes) {
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  void* data = rounded < bytes ? nullptr : std::aligned_alloc(64, rounded);
  if (data == nullptr) {
    const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
    const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    fail(ErrorKind::does_not_fit,
         "the operating system refused {} bytes of memory (this machine has {} in all); use a smaller context or model",
         bytes, pages * page_bytes);
  }
  return data;
}

void CpuBackend::free(void* data, std::size_t) noexcept { std::free(data); }
void CpuBackend::upload(void* device, const void* host, std::size_t bytes) { std::memcpy(device, host, bytes); }
void CpuBackend::download(void* host, const void* device, std::size_t bytes) { std::memcpy(host, device, bytes); }
void CpuBackend::copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void CpuBackend::zero(void* device, std::size_t bytes) { std::memset(device, 0, bytes); }

std::string CpuBackend::description() const {
  return fmt::format("cpu {}, {} thread{}", cpu_tier_name(tier_), pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s");
}

std::unique_ptr<ops::Weight> CpuBackend::load_weight(const ops::WeightData& data) {
  return pack_weight(data, pool_, tier_, interleave_weights_);
}

bool CpuBackend::begin_step(const ops::StepPlan& plan, std::uint64_t) {
  plan_ = &plan;
  return false;
}

void CpuBackend::end_step() { plan_ = nullptr; }

void CpuBackend::embed(const ops::Weight& table, const std::int32_t* ids, Matrix out) {
  const Profiler::Scope scope(profiler_, "embed");
  cpu::embed_rows(pool_, table, ids, out);
}

void CpuBackend::rms_norm(Matrix x, const float* weight, float eps, Matrix out) {
  const Profiler::Scope scope(profiler_, "rms_norm");
  cpu::rms_norm(pool_, tier_, x, weight, eps, out);
}

void CpuBackend::add_rms_norm(Matrix residual, Matrix delta, const float* weight, float eps, Matrix out) {
  const Profiler::Scope scope(profiler_, "add_rms_norm");
  cpu::add_rms_norm(pool_, tier_, residual, delta, weight, eps, out);
}

void CpuBackend::add(Matrix x, Matrix y) {
  const Profiler::Scope scope(profiler_, "add");
  cpu::add(pool_, tier_, x, y);
}

void CpuBackend::linear(Matrix x, std::span<const ops::LinearOut> outs) {
  std::uint64_t bytes = 0;
  for (const ops::LinearOut& out : outs) bytes += out.weight->bytes;
  const Profiler::Scope scope(profiler_, "linear", bytes);
  cpu::linear(pool_, tier_, x, outs);
}

void CpuBackend::swiglu(Matrix gate, Matrix up, Matrix out) {
  const Profiler::Scope scope(profiler_, "swiglu");
  cpu::swiglu(pool_, tier_, gate, up, out);
}

void CpuBackend::byte_values(const std::uint8_t* bytes, const float* table, std::int64_t plane, Matrix out) {
  const Profiler::Scope scope(profiler_, "byte_values");
  cpu::byte_values(pool_, bytes, table, plane, out);
}
void CpuBackend::gather_rows(Matrix x, const std::int32_t* rows, Matrix out) {
  const Profiler::Scope scope(profiler_, "gather_rows");
  cpu::gather_rows(pool_, x, rows, out);
}

void CpuBackend::scatter_rows(Matrix x, const std::int32_t* rows, Matrix out) {
  const Profiler::Scope scope(profiler_, "scatter_rows");
  cpu::scatter_rows(pool_, x, rows, out);
}

void CpuBackend::gdn_mixer(int layer, const ops::GdnWeights& weights, Matrix qkv, Matrix z, Matrix a, Matrix b, Matrix out,
                           const ops::GdnTaps* taps) {
  const std::uint64_t states = plan_->sequences.size() * static_cast<std::uint64_t>(weights.num_v_heads) *
                               static_cast<std::uint64_t>(weights.head_k_dim * weights.head_v_dim);
  const Profiler::Scope scope(profiler_, "gdn_mixer", 2 * states * sizeof(float));
  gdn_mixer_.run(pool_, tier_, *plan_, layer, weights, qkv, z, a, b, out, taps);
}

void CpuBackend::attention_mixer(int layer, const ops::AttentionWeights& weights, Matrix q_gate, Matrix k, Matrix v,
                                 const float* rope_cos, const float* rope_sin, Matrix out, const ops::AttentionTaps* taps) {
  std::uint64_t tokens = 0;
  for (const ops::SequenceStep& s : plan_->sequences) tokens += static_cast<std::uint64_t>(s.past_tokens + s.num_rows);
  const Profiler::Scope scope(profiler_, "attention_mixer",
                              2 * tokens * static_cast<std::uint64_t>(weights.num_kv_heads * weights.head_dim) *
                                  dtype_info(plan_->shape.kv_type).block_bytes);
  attention_mixer_.run(pool_, tier_, *plan_, layer, weights, q_gate, k, v, rope_cos, rope_sin, out, taps);
}

void CpuBackend::moe_ffn(Matrix x, const ops::MoeWeights& weights, Matrix out, const ops::MoeTaps* taps) {
  const Profiler::Scope scope(profiler_, "moe_ffn");
  cpu::moe_experts(pool_, tier_, x, weights, out, taps);
}

void CpuBackend::routed_experts(Matrix x, const ops::Weight& gate, const ops::Weight& up, const ops::Weight& down, int top_k,
                                const std::int32_t* ids, const float* weights, Matrix out) {
  const Profiler::Scope scope(profiler_, "routed_experts");
  const ops::MoeWeights experts{nullptr, &gate, &up, &down, nullptr, nullptr, nullptr, nullptr, top_k};
  const MoeRouting routing{ids, weights};
  cpu::moe_experts(pool_, tier_, x, experts, out, nullptr, &routing);
}

void CpuBackend::layer_norm(Matrix x, const float* weight, const float* bias, float eps, Matrix out) {
  const Profiler::Scope scope(profiler_, "layer_norm");
  cpu::layer_norm(pool_, tier_, x, weight, bias, eps, out);
}

void CpuBackend::gelu(Matrix x, ops::Gelu kind) {
  const Profiler::Scope scope(profiler_, "gelu");
  cpu::gelu(pool_, tier_, x, kind);
}

void CpuBackend::add_weighted_rows(Matrix table, const std::int32_t* rows, const float* weights, int per_row, Matrix out) {
  const Profiler::Scope scope(profiler_, "add_weighted_rows");
  cpu::add_weighted_rows(pool_, tier_, table, rows, weights, per_row, out);
}

void CpuBackend::segment_attention(Matrix q, Matrix k, Matrix v, int num_heads, std::span<const std::int32_t> segments,
                                   const float* rope_cos, const float* rope_sin, Matrix out) {
  const Profiler::Scope scope(profiler_, "segment_attention");
  segment_attention_.run(pool_, tier_, q, k, v, num_heads, segments, rope_cos, rope_sin, out);
}

void CpuBackend::argmax(Matrix logits, std::int32_t* ids) {
  const Profiler::Scope scope(profiler_, "argmax");
  cpu::argmax(pool_, tier_, logits, ids);
}

}  // namespace heirloom::cpu
