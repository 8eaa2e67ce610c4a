// The CPU backend: the op set on x86-64, from plain loops (tier `scalar`) up to AVX-512 and AMX. It owns the thread pool,
// the scratch memory and the choice of tier; kernels/<op>/ own the loops.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "backend/cpu/kernels/attention/attention_mixer.h"
#include "backend/cpu/kernels/gdn_mixer/gdn_mixer.h"
#include "backend/cpu/kernels/segment_attention/segment_attention.h"
#include "base/cpu_features.h"
#include "base/profiler.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

struct CpuBackendOptions {
  int threads = 0;                 // 0 = default_thread_count()
  CpuTier tier = best_cpu_tier();  // callers validate names with select_cpu_tier
  Profiler* profiler = nullptr;    // outlives the backend; null = off
  bool interleave_weights = false; // spread weights over the memory nodes of a machine with several
};

class CpuBackend : public ops::Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options = {});
  ~CpuBackend() override;

  CpuTier tier() const { return tier_; }
  ThreadPool& pool() { return pool_; }
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }

  void* alloc(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) noexcept override;
  void upload(void* device, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void zero(void* device, std::size_t bytes) override;
  void synchronize() override {}
  std::string description() const override;
  bool is_host_memory() const override { return true; }
  bool captures_states() const override { return true; }

  std::unique_ptr<ops::Weight> load_weight(const ops::WeightData& data) override;

  bool begin_step(const ops::StepPlan& plan, std::uint64_t key) override;
  void end_step() override;

  void embed(const ops::Weight& table, const std::int32_t* ids, ops::Matrix out) override;
  void rms_norm(ops::Matrix x, const float* weight, float eps, ops::Matrix out) override;
  void add_rms_norm(ops::Matrix residual, ops::Matrix delta, const float* weight, float eps, ops::Matrix out) override;
  void add(ops::Matrix x, ops::Matrix y) override;
  void linear(ops::Matrix x, std::span<const ops::LinearOut> outs) override;
  void swiglu(ops::Matrix gate, ops::Matrix up, ops::Matrix out) override;
  void byte_values(const std::uint8_t* bytes, const float* table, std::int64_t plane, ops::Matrix out) override;
  void gather_rows(ops::Matrix x, const std::int32_t* rows, ops::Matrix out) override;
  void scatter_rows(ops::Matrix x, const std::int32_t* rows, ops::Matrix out) override;

  void gdn_mixer(int layer, const ops::GdnWeights& weights, ops::Matrix qkv, ops::Matrix z, ops::Matrix a, ops::Matrix b,
                 ops::Matrix out, const ops::GdnTaps* taps) override;
  void attention_mixer(int layer, const ops::AttentionWeights& weights, ops::Matrix q_gate, ops::Matrix k, ops::Matrix v,
                       const float* rope_cos, const float* rope_sin, ops::Matrix out,
                       const ops::AttentionTaps* taps) override;
  void moe_ffn(ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out, const ops::MoeTaps* taps) override;

  /// The routed experts of a layer alone, for choices made elsewhere: out [T, hidden] = sum over ids [T, top_k] of weights [T,
  /// top_k] times the expert's output. gate, up, down come from load_weight; x and out are host memory.
  void routed_experts(ops::Matrix x, const ops::Weight& gate, const ops::Weight& up, const ops::Weight& down, int top_k,
                      const std::int32_t* ids, const float* weights, ops::Matrix out);

  void layer_norm(ops::Matrix x, const float* weight, const float* bias, float eps, ops::Matrix out) override;
  void gelu(ops::Matrix x, ops::Gelu kind) override;
  void add_weighted_rows(ops::Matrix table, const std::int32_t* rows, const float* weights, int per_row,
                         ops::Matrix out) override;
  void segment_attention(ops::Matrix q, ops::Matrix k, ops::Matrix v, int num_heads, std::span<const std::int32_t> segments,
                         const float* rope_cos, const float* rope_sin, ops::Matrix out) override;

  void argmax(ops::Matrix logits, std::int32_t* ids) override;

 private:
  ThreadPool pool_;
  CpuTier tier_;
  Profiler* profiler_;
  bool interleave_weights_;
  const ops::StepPlan* plan_ = nullptr;
  GdnMixer gdn_mixer_;
  AttentionMixer attention_mixer_;
  SegmentAttention segment_attention_;
};

}  // namespace heirloom::cpu
