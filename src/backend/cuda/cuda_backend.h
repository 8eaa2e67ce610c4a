// ops::Backend over the GPU kernels: one Device (a card, or the emulator), weights in device layout, and the choice of kernel
// for each op and shape. Few rows (decode) take GEMVs with what surrounds them fused in; many rows take the vendor's GEMM over
// dequantised weights. A step that repeats is recorded once as a graph and replayed.
//
// Fusion works by delay: rms_norm and linear of few rows wait until the next op shows whether they can be part of one kernel
// (norm -> linear, linear -> add / SwiGLU / convolution), and for many rows FP32 products and biases (four products -> delta rule as
// one, linear -> GELU, linear -> add -> layer norm). Every op starts by taking what it can use and launching the rest, so
// the order of effects is that of the calls, and every output is written as if nothing had been fused. A step of one token that may be
// recorded (nobody reads its values in between) goes further where blocks run in clusters: half a layer is one kernel (cuda_layers.cc).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_weight.h"
#include "backend/cuda/device.h"
#include "backend/cuda/expert_host.h"
#include "backend/cuda/expert_stream.h"
#include "backend/cuda/kernels/bias_args.h"
#include "backend/cuda/kernels/gdn_args.h"
#include "backend/cuda/kernels/gemv_args.h"
#include "backend/cuda/kernels/layer_args.h"
#include "backend/cuda/kernels/segment_attention_args.h"
#include "backend/cuda/kernels/token_args.h"
#include "base/profiler.h"
#include "ops/backend.h"

namespace heirloom::cuda {

/// Arithmetic of matrix products with many rows. bf16 rounds both operands to 8 bits of mantissa and accumulates in f32.
enum class GemmType { f32, bf16 };

struct CudaBackendOptions {
  std::optional<GemmType> gemm;     // empty: bf16 where the card has tensor cores for it, f32 under --profile fermi
  int gdn_recurrent_rows = 1;       // sequences of at most so many rows use the recurrent delta rule
  bool fuse = true;                 // false: every op is a kernel of its own (for comparison)
  bool layer_kernels = true;        // false: no kernel takes half a layer (for comparison)
  bool weight_copies = true;        // false: weights are unpacked at each use, never kept as rows of BF16 or FP32 (for comparison)
  Profiler* profiler = nullptr;
  std::shared_ptr<ExpertHost> expert_host;  // set: experts may stay in host memory, and this computes steps of few rows
  std::uint64_t expert_bytes = 0;   // then: GPU memory for experts. The first layers that fit beside the stream's buffers stay in it
  int host_expert_rows = 16;        // "few": more rows need most experts, which the link then brings as fast as the CPU reads them
};

class CudaBackend : public ops::Backend {
 public:
  CudaBackend(std::unique_ptr<Device> device, const CudaBackendOptions& options = {});
  ~CudaBackend() override;

  Device& device() { return *device_; }
  const Device& device() const { return *device_; }
  /// Null unless experts stay in host memory.
  ExpertStream* expert_stream() const { return stream_.get(); }
  GemmType gemm_type() const { return gemm_; }

  void* alloc(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) noexcept override;
  void upload(void* device, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void zero(void* device, std::size_t bytes) override;
  void synchronize() override;
  std::string description() const override;
  bool captures_states() const override { return options_.gdn_recurrent_rows == 1; }

  std::unique_ptr<ops::Weight> load_weight(const ops::WeightData& data) override;

  bool begin_step(const ops::StepPlan& plan, std::uint64_t key) override;
  void end_step() override;
  void abandon_step() noexcept override;

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
                       const float* rope_cos, const float* rope_sin, ops::Matrix out, const ops::AttentionTaps* taps) override;
  void moe_ffn(ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out, const ops::MoeTaps* taps) override;

  void layer_norm(ops::Matrix x, const float* weight, const float* bias, float eps, ops::Matrix out) override;
  void gelu(ops::Matrix x, ops::Gelu kind) override;
  void add_weighted_rows(ops::Matrix table, const std::int32_t* rows, const float* weights, int per_row,
                         ops::Matrix out) override;
  void segment_attention(ops::Matrix q, ops::Matrix k, ops::Matrix v, int num_heads, std::span<const std::int32_t> segments,
                         const float* rope_cos, const float* rope_sin, ops::Matrix out) override;
  void argmax(ops::Matrix logits, std::int32_t* ids) override;

 private:
  // Scratch that outlives an op, by purpose; grows and never shrinks. Growing invalidates recorded graphs.
  enum Slot : std::size_t {
    kSlotWeights, kSlotInputs, kSlotConv, kSlotGdnQ, kSlotGdnK, kSlotGdnG, kSlotGdnBeta, kSlotGdnU, kSlotGdnW, kSlotGdnAttention,
    kSlotGdnCumulative, kSlotGdnValues, kSlotGdnStates, kSlotGdnCore, kSlotQ, kSlotPartial, kSlotStat, kSlotScores, kSlotProbabilities, kSlotKeys, kSlotValues, kSlotRouter,
    kSlotIds, kSlotTopWeights, kSlotOffsets, kSlotOrder, kSlotTiles, kSlotCounts, kSlotGate, kSlotUp, kSlotExperts, kSlotShared,
    kSlotSharedLogit, kSlotSharedGate, kSlotSharedUp, kSlotUnpacked0, kSlotUnpacked1,
    kSlotArgmax, kSlotSegments, kSlotStep, kSlotPartials0, kSlotPartials1, kSlotSum0, kSlotSum1, kSlotJoined, kSlotCount
  };
  struct Scratch {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  void* scratch(Slot slot, std::size_t bytes);
  void* allocate(std::size_t bytes, std::string_view what);  // makes room by dropping copies of weights
  float* scratch_f32(Slot slot, std::int64_t floats) { return static_cast<float*>(scratch(slot, static_cast<std::size_t>(floats) * 4)); }

  struct PendingNorm {
    ops::Matrix x;
    const float* weight = nullptr;
    float eps = 0;
    float* out = nullptr;
    float* out_copy = nullptr;
  };
  /// Products of many rows that the next op may want as one.
  struct PendingProducts {
    ops::Matrix x;
    std::vector<ops::LinearOut> outs;
  };
  /// `of` is a product of many rows that still lacks its bias.
  struct PendingBias {
    ops::Matrix of;
    const float* bias;
  };
  /// x += y + bias.
  struct PendingAdd {
    ops::Matrix x, y;
    const float* bias;
  };
  struct PendingGemv {
    GemvArgs args{};
    std::optional<ExpertSumArgs> experts;  // a sum over experts (cuda_token.cc), of which args has what the others need to know
    const char* format = "";
    int group = 1;
  };
  /// Products of a normed row that wait for what is done with them.
  struct PendingProjections {
    PendingNorm norm;
    ops::Matrix x;
    std::vector<ops::LinearOut> outs;
  };
  /// Half a layer, from the norm to the last product: a Gated DeltaNet, what follows attention_step, or a dense FFN (neither).
  struct PendingHalf {
    PendingProjections in;
    int layer = 0;
    std::optional<ops::GdnWeights> gdn;
    std::optional<AttentionOutArgs> attention;
    ops::Matrix out;                    // input of the last product
    const CudaWeight* last = nullptr;   // known once it was asked for
    float* delta = nullptr;
  };
  /// The residual stream `of` is `base` and `parts` partial sums.
  struct Residual {
    float* of;
    const float* base;
    const float* partials;
    int parts, width;
  };
  struct Recorded {
    int seen = 0;
    Graph graph = nullptr;
  };
  struct ExpertView;
  struct ExpertOrder;

  // cuda_backend.cc
  void flush();
  void flush_keeping_residual();
  void flush_keeping_inputs();
  void flush_norm();
  void flush_products();
  const float* take_bias(ops::Matrix x);
  void drop_graphs() noexcept;
  bool upload_by_chunks();
  bool keeps_resident(const ops::WeightData& experts);
  PendingGemv* pending_with_out(const float* out);
  void run_map(const char* kernel, float* x, std::uint64_t n);
  // cuda_layers.cc
  bool collect(ops::Matrix x, std::span<const ops::LinearOut> outs);
  bool collect_gdn(int layer, const ops::GdnWeights& weights, ops::Matrix qkv, ops::Matrix z, ops::Matrix a, ops::Matrix b, ops::Matrix out);
  bool collect_attention(int layer, const ops::AttentionWeights& weights, ops::Matrix q_gate, ops::Matrix k, ops::Matrix v,
                         const float* rope_cos, const float* rope_sin, ops::Matrix out);
  bool collect_ffn(ops::Matrix gate, ops::Matrix up, ops::Matrix out);
  bool launch_half(ops::Matrix residual, const float* delta);
  bool launch_gdn_layer(const PendingHalf& half);
  bool launch_ffn_layer(const PendingHalf& half);
  bool launch_attention_out(const PendingHalf& half);
  void combine_attention(const AttentionOutArgs& from, ops::Matrix out);
  bool launch_input_rows(const PendingProjections& pending);
  void give_up_collecting();
  LayerInput layer_input(const PendingNorm& norm);
  float* layer_partials(std::int64_t hidden);
  void layer_done(const PendingNorm& norm, const LayerInput& in, float* partials, int parts);
  void settle_residual();
  // cuda_token.cc
  const float* residual_in_one_piece(const float* x);
  bool launch_token_rows(const PendingGemv& gemv);
  struct TokenRowsLaunch {
    std::string kernel;
    unsigned blocks;
    std::size_t shared_bytes;
    TokenRowsArgs args;
  };
  std::optional<TokenRowsLaunch> plan_token_rows(TokenRowsArgs args, std::string_view format) const;
  void launch(const TokenRowsLaunch& rows);
  bool launch_gdn_token(const PendingHalf& half);
  bool token_experts(ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out);
  void launch_expert_sum(const PendingGemv& gemv);
  // cuda_linear.cc
  void linear_few_rows(ops::Matrix x, std::span<const ops::LinearOut> outs);
  void launch_gemv(PendingGemv& gemv);
  void run_products(ops::Matrix x, std::span<const ops::LinearOut> outs, bool exact);
  float* joined_products(std::span<const float* const> outs);
  void gemm_linear(ops::Matrix x, std::span<const ops::LinearOut> outs, bool exact);
  void gemm_in_waves(GemmCall call);
  std::int64_t whole_waves(const GemmCall& call) const;
  std::size_t batch_of(ops::Matrix x, std::span<const ops::LinearOut> outs) const;
  void linear_now(ops::Matrix x, std::span<const ops::LinearOut> outs, bool exact);
  void gemm(const GemmCall& call);
  const void* unpacked(std::span<const CudaWeight* const> weights, bool bf16);
  void unpack_rows(const CudaWeight& weight, std::int64_t first, std::int64_t rows, void* to, bool bf16);
  void to_bf16(unsigned short* out, const float* x, std::uint64_t count);
  const unsigned short* bf16_inputs(ops::Matrix x);
  unsigned short* bf16_twin(ops::Matrix out);
  void expert_gemv(const CudaWeight& first, const CudaWeight* second, const float* x, int rows_per_input, const int* ids,
                   int pairs, float* out, float* swiglu_out);
  // cuda_moe.cc
  bool few_rows_experts(ops::Matrix x, const ops::MoeWeights& weights, const std::int32_t* ids, const float* top,
                        const float* shared_logit, ops::Matrix out);
  void experts_on_host(ops::Matrix x, const ops::MoeWeights& weights, const std::int32_t* ids, const float* top, float* out,
                       const std::function<void()>& meanwhile);
  void grouped_experts(ops::Matrix x, const ops::MoeWeights& weights, const std::int32_t* ids, float* expert_out);
  ExpertOrder sort_pairs(const std::int32_t* ids, int pairs, int experts, int tile_rows);
  ExpertView expert_view(const ops::Weight* weight, const void* streamed, Slot slot, int begin, int end, bool bf16);
  // cuda_gdn_mma.cc
  void gdn_chunks_on_tensor_cores(int layer, const ops::GdnWeights& weights, const GdnChunkArgs& inputs, ops::Matrix z, ops::Matrix out,
                                  float* core, int chunks);
  // cuda_attention.cc
  bool attention_flash(int layer, const ops::AttentionWeights& weights, std::size_t sequence, const float* q, const float* q_gate,
                       ops::Matrix out);
  void attention_by_gemm(int layer, const ops::AttentionWeights& weights, std::size_t sequence, const float* q, float* out);
  // cuda_segments.cc
  const int* device_segments(std::span<const std::int32_t> segments);
  SegmentAttentionArgs segment_inputs(ops::Matrix q, ops::Matrix k, ops::Matrix v);
  void segment_attention_by_gemm(const SegmentAttentionArgs& args, int num_heads, std::span<const std::int32_t> segments, int longest);

  const StepSequence* device_sequences() const { return reinterpret_cast<const StepSequence*>(step_device_); }
  const int* device_row_sequence() const { return reinterpret_cast<const int*>(step_device_ + row_sequence_offset_); }
  int kv_type() const;
  std::int64_t context_pages() const;  // of the longest sequence, after this step
  bool one_row_each() const;           // every sequence of the step has one row

  std::unique_ptr<Device> device_;
  CudaBackendOptions options_;
  GemmType gemm_ = GemmType::f32;
  std::shared_ptr<WeightCopies> copies_;
  Scratch scratch_[kSlotCount];
  // Of which matrix kSlotInputs holds the values as bf16: a kernel that makes a product's input writes both forms. flush() ends it,
  // for the next op may write the matrix.
  ops::Matrix bf16_inputs_of_{};
  std::optional<PendingNorm> pending_norm_;
  std::vector<PendingGemv> pending_gemvs_;
  std::optional<PendingProducts> pending_products_;
  std::vector<PendingBias> pending_biases_;
  std::optional<PendingAdd> pending_add_;
  bool collecting_ = false;        // in a step of one token that may be recorded
  std::optional<PendingProjections> projections_;
  std::optional<PendingHalf> half_;
  std::optional<Residual> residual_;
  int turn_ = 0;                   // kernels of half a layer take two sets of buffers in turn

  std::vector<std::int32_t> segments_host_;  // what kSlotSegments holds
  const int* segments_device_ = nullptr;

  const ops::StepPlan* plan_ = nullptr;
  std::vector<std::byte> step_host_;
  std::byte* step_device_ = nullptr;
  std::size_t row_sequence_offset_ = 0;
  std::int64_t splits_ = 0;        // pages that attention kernels are launched for (a recorded step: rounded up)
  std::map<std::pair<std::uint64_t, std::int64_t>, Recorded> recorded_;
  Recorded* recording_ = nullptr;  // set while launches are being captured

  std::unique_ptr<ExpertStream> stream_;
  std::uint64_t resident_expert_bytes_ = 0;
  int layer_experts_left_ = 0;     // tensors of the layer being loaded that are still to come, resident like its first
  HostMemory host_io_;             // activations on their way to the experts on the host and back
  Event host_io_ready_ = nullptr;
  HostMemory host_small_;          // where short downloads land
  static constexpr std::size_t kUploadChunk = 512 << 10, kUploadChunks = 3;
  HostMemory upload_chunks_;
  Event upload_read_[kUploadChunks] = {};  // the last copy from each chunk is over
  std::size_t upload_turn_ = 0;    // the chunk that is next
};

}  // namespace heirloom::cuda
