// The two mixers of the study at the dimensions of the 0.8B: the delta rule step by step and in chunks, and softmax attention
// as written down, as products and fused.
#include <cmath>

#include "base/check.h"
#include "tools/study/study_bench.h"
#include "tools/study/synthetic_model.h"

namespace heirloom::tools {
namespace {

constexpr int kPage = ops::StateShape::kPageTokens;

/// Device floats by name, all from the same random bytes.
class Floats {
 public:
  explicit Floats(ops::Backend& backend) : backend_(backend) {}
  float* make(std::int64_t count) {
    const std::vector<std::byte> bytes = synthetic_blocks(DType::f32, static_cast<std::size_t>(count) * 4);
    buffers_.push_back(backend_.make_buffer(bytes.size()));
    backend_.upload(buffers_.back().data(), bytes.data(), bytes.size());
    return buffers_.back().f32();
  }

 private:
  ops::Backend& backend_;
  std::vector<ops::Buffer> buffers_;
};

class DeltaLayer {
 public:
  DeltaLayer(ops::Backend& backend, int tokens) : backend_(backend), floats_(backend), tokens_(tokens) {
    shape_.num_gdn_layers = 1;
    shape_.conv_channels = 3 * kHeads * kDim;
    shape_.num_v_heads = kHeads;
    shape_.head_k_dim = shape_.head_v_dim = kDim;
    conv_ = floats_.make(static_cast<std::int64_t>(shape_.conv_floats()));
    recurrent_ = floats_.make(static_cast<std::int64_t>(shape_.recurrent_floats()));
    weights_ = {floats_.make(shape_.conv_channels * 4), floats_.make(kHeads), floats_.make(kHeads), floats_.make(kDim), kHeads, kHeads, kDim, kDim,
                false, 1e-6f};
    const auto n = static_cast<std::int64_t>(tokens);
    qkv_ = floats_.make(n * shape_.conv_channels);
    z_ = floats_.make(n * kHeads * kDim);
    a_ = floats_.make(n * kHeads);
    b_ = floats_.make(n * kHeads);
    out_ = floats_.make(n * kHeads * kDim);
  }
  /// All tokens, `at_once` a call.
  void run(int at_once) {
    for (int past = 0; past < tokens_; past += at_once) {
      const int rows = std::min(at_once, tokens_ - past);
      ops::StepPlan plan;
      plan.shape = shape_;
      plan.num_rows = rows;
      plan.sequences.push_back({0, rows, past, conv_, recurrent_, {}, {}});
      const auto part = [&](float* values, std::int64_t cols) { return ops::Matrix{values + past * cols, rows, cols}; };
      backend_.begin_step(plan, 0);
      backend_.gdn_mixer(0, weights_, part(qkv_, shape_.conv_channels), part(z_, kHeads * kDim), part(a_, kHeads), part(b_, kHeads),
                         part(out_, kHeads * kDim), nullptr);
      backend_.end_step();
    }
  }

 private:
  static constexpr int kHeads = 16, kDim = 128;
  ops::Backend& backend_;
  Floats floats_;
  int tokens_;
  ops::StateShape shape_;
  ops::GdnWeights weights_{};
  float *conv_, *recurrent_, *qkv_, *z_, *a_, *b_, *out_;
};

class AttentionLayer {
 public:
  static constexpr int kQueryHeads = 8, kKvHeads = 2, kDim = 256, kRotary = 64;

  AttentionLayer(ops::Backend& backend, int tokens) : backend_(backend), floats_(backend), tokens_(tokens) {
    shape_.num_attention_layers = 1;
    shape_.num_kv_heads = kKvHeads;
    shape_.head_dim = kDim;
    shape_.kv_type = DType::f16;
    for (int i = 0; i < (tokens + kPage - 1) / kPage; ++i) {
      pages_.push_back(backend.make_buffer(shape_.page_bytes()));
      backend.zero(pages_.back().data(), pages_.back().bytes());
      page_table_.push_back(static_cast<std::byte*>(pages_.back().data()));
    }
    weights_ = {floats_.make(kDim), floats_.make(kDim), kQueryHeads, kKvHeads, kDim, kRotary, 1e-6f};
    const auto n = static_cast<std::int64_t>(tokens);
    q_gate_ = floats_.make(n * 2 * kQueryHeads * kDim);
    k_ = floats_.make(n * kKvHeads * kDim);
    v_ = floats_.make(n * kKvHeads * kDim);
    cosine_ = floats_.make(n * kRotary / 2);
    sine_ = floats_.make(n * kRotary / 2);
    out_ = floats_.make(n * kQueryHeads * kDim);
  }
  void run(int at_once) {
    for (int past = 0; past < tokens_; past += at_once) {
      const int rows = std::min(at_once, tokens_ - past);
      ops::StepPlan plan;
      plan.shape = shape_;
      plan.num_rows = rows;
      plan.sequences.push_back({0, rows, past, nullptr, nullptr, {}, page_table_});
      const auto part = [&](float* values, std::int64_t cols) { return ops::Matrix{values + past * cols, rows, cols}; };
      backend_.begin_step(plan, 0);
      backend_.attention_mixer(0, weights_, part(q_gate_, 2 * kQueryHeads * kDim), part(k_, kKvHeads * kDim), part(v_, kKvHeads * kDim),
                               cosine_ + past * kRotary / 2, sine_ + past * kRotary / 2, part(out_, kQueryHeads * kDim), nullptr);
      backend_.end_step();
    }
  }
  /// The kernel that computes each row alone, keys and values read from global memory again for each.
  void run_naive(cuda::Device& device) const {
    device.launch("attention_naive", {static_cast<unsigned>(std::min(tokens_, 65535)), kQueryHeads}, {128}, static_cast<std::size_t>(tokens_) * 4,
                  out_, static_cast<const float*>(q_gate_), static_cast<const float*>(k_), static_cast<const float*>(v_), tokens_,
                  kQueryHeads * kDim, kKvHeads * kDim, kDim, kQueryHeads / kKvHeads, 1, 1.0f / std::sqrt(static_cast<float>(kDim)));
  }

 private:
  ops::Backend& backend_;
  Floats floats_;
  int tokens_;
  ops::StateShape shape_;
  ops::AttentionWeights weights_{};
  std::vector<ops::Buffer> pages_;
  std::vector<std::byte*> page_table_;
  float *q_gate_, *k_, *v_, *cosine_, *sine_, *out_;
};

}  // namespace

void study_delta(StudyBench& bench) {
  constexpr int kTokens = 2048;
  if (!bench.skipped_without_gpu("sequential and chunked form on the GPU")) {
    const auto measure = [&](const char* what, int recurrent_rows, cuda::GemmType gemm) {
      cuda::CudaBackendOptions settings;
      settings.gemm = gemm;
      settings.gdn_recurrent_rows = recurrent_rows;
      const auto gpu = bench.open_gpu(settings);
      DeltaLayer layer(*gpu, kTokens);
      bench.add(what, bench.time(*gpu, [&] { layer.run(kTokens); }));
      return gpu->device().tier_of("gdn_mma_walk_128") >= 80 && gpu->device().has_vendor_gemm(true);
    };
    measure("GPU, token after token", 1 << 30, cuda::GemmType::f32);
    if (measure("GPU, chunks of 64, FP32", 1, cuda::GemmType::f32)) measure("GPU, chunks of 64, TF32 tensor cores", 1, cuda::GemmType::bf16);
  }
  // On the CPU chunks do not change the arithmetic: the columns of the state that a thread works on stay in its cache for all tokens of a call.
  bench.begin_group();
  const auto cpu = bench.open_cpu();
  DeltaLayer layer(*cpu, kTokens);
  bench.add("CPU, a call a token", bench.time(*cpu, [&] { layer.run(1); }));
  bench.add("CPU, one call (sequential too: same bits)", bench.time(*cpu, [&] { layer.run(kTokens); }));
}

void study_attention(StudyBench& bench) {
  if (bench.skipped_without_gpu("forms of attention")) return;
  constexpr int kFusedRows = 31;  // the most rows of a step that take the fused kernel of decoding
  const auto gpu = bench.open_gpu(cuda::GemmType::f32);
  std::unique_ptr<cuda::CudaBackend> products, fused;  // BF16
  if (gpu->device().has_vendor_gemm(true)) {
    products = bench.open_gpu(cuda::GemmType::bf16, "sm20");  // below the tier of the fused kernel
    fused = bench.open_gpu(cuda::GemmType::bf16);
    if (fused->device().tier_of("attention_flash_4") == 0) fused.reset();
  }
  for (const int tokens : {2048, 4096, 10240}) {
    bench.begin_group();
    const auto as_prompts_run = [&](cuda::CudaBackend& backend, const char* what) {
      AttentionLayer layer(backend, tokens);
      const StudyFigure figure = bench.time(backend, [&] { layer.run(2048); });
      bench.add(fmt::format("{} tokens: {}", tokens, what), figure, fmt::format("{:.2f} us a token", figure.median * 1e3 / tokens));
    };
    {
      AttentionLayer layer(*gpu, tokens);
      bench.add(fmt::format("{} tokens: naive, a block a row, FP32", tokens), bench.time(*gpu, [&] { layer.run_naive(gpu->device()); }));
      bench.add(fmt::format("{} tokens: fused, split at pages (decoding's), FP32", tokens), bench.time(*gpu, [&] { layer.run(kFusedRows); }));
    }
    as_prompts_run(*gpu, "products, FP32");
    if (products) as_prompts_run(*products, "products, BF16");
    if (fused) as_prompts_run(*fused, "fused on tensor cores, BF16");
  }
}

}  // namespace heirloom::tools
