// Parts of the study that run a language model: decoding by weight type, the head on either side, prompts whole and in chunks,
// and how much of the vendor GEMM's rate a whole model keeps.
#include "base/check.h"
#include "tools/sequence.h"
#include "tools/study/study_bench.h"
#include "tools/study/study_picture.h"
#include "tools/study/synthetic_model.h"

namespace heirloom::tools {
namespace {

constexpr int kPrompt = 947;  // the prompt of the papers

std::vector<std::int32_t> some_tokens(int count) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(i * 37 % 1000);
  return ids;
}

/// The rate of `amount` of `unit` a prompt of `tokens` from an empty state, in `chunks` steps of about equal size.
StudyFigure prompt_rate(StudyBench& bench, model::Model& model, int tokens, int chunks, double amount, const char* unit) {
  const std::vector<std::int32_t> ids = some_tokens(tokens);
  Sequence sequence(model, DType::f16);
  sequence.reserve(tokens);
  return bench.rate(model.backend(), amount, unit, [&] {
    sequence.clear();
    for (int chunk = 0, past = 0; chunk < chunks; ++chunk) {
      const int rows = (tokens - past) / (chunks - chunk);
      sequence.feed_greedy({ids.data() + past, static_cast<std::size_t>(rows)});
      past += rows;
    }
  });
}

void decode_on(StudyBench& bench, ops::Backend& backend, const char* where) {
  constexpr int kTokens = 64;
  bench.begin_group();
  for (const DType type : {DType::q8_0, DType::q4_0}) {
    SyntheticOptions options;
    options.linears = type;
    const auto model = bind_synthetic(options, backend);
    const double megabytes = static_cast<double>(model->active_weight_bytes()) * 1e-6;
    Sequence sequence(*model, DType::f16);
    sequence.reserve(kTokens);
    bench.add(fmt::format("{}: {}{}", where, dtype_name(type), type == DType::q4_0 ? ", head q8_0" : ""),
              bench.rate(backend, kTokens, "tok/s", [&] {
                sequence.clear();
                std::int32_t id = 1;
                for (int i = 0; i < kTokens; ++i) id = sequence.feed_greedy({&id, 1});
              }),
              fmt::format("{:.0f} MB of weights a token", megabytes));
  }
}

}  // namespace

void study_decode(StudyBench& bench) {
  if (!bench.skipped_without_gpu("decoding on the GPU")) decode_on(bench, *bench.open_gpu(), "GPU");
  decode_on(bench, *bench.open_cpu(), "CPU");
}

void study_head(StudyBench& bench) {
  constexpr std::int64_t kVocabulary = 248320, kHidden = 2048;
  const std::vector<std::byte> bytes = synthetic_blocks(DType::q6_k, kVocabulary * row_bytes(DType::q6_k, kHidden));
  const std::vector<std::byte> hidden = synthetic_blocks(DType::f32, kHidden * 4);
  const auto measure = [&](ops::Backend& backend, const char* what) {
    const auto weight = backend.load_weight({"head", DType::q6_k, 1, kVocabulary, kHidden, {{bytes.data(), kVocabulary}}});
    const ops::Buffer x = backend.make_buffer(hidden.size()), logits = backend.make_buffer(kVocabulary * 4), id = backend.make_buffer(4);
    bench.add(what, bench.time(backend, [&] {
      backend.upload(x.data(), hidden.data(), hidden.size());
      const ops::LinearOut out{weight.get(), logits.f32()};
      backend.linear({x.f32(), 1, kHidden}, {&out, 1});
      backend.argmax({logits.f32(), 1, kVocabulary}, id.i32());
      std::int32_t chosen = 0;
      backend.download(&chosen, id.data(), 4);
    }));
  };
  measure(*bench.open_cpu(), "on the CPU");
  if (!bench.skipped_without_gpu("head on the GPU")) measure(*bench.open_gpu(), "on the GPU, state there and id back");
}

void study_prefill(StudyBench& bench) {
  constexpr int kChunks = 4;
  if (!bench.skipped_without_gpu("prompts with streamed experts")) {
    // Ten layers of forty: the ratio is that of the whole model, in a quarter of its memory and time.
    SyntheticOptions options;
    options.size = SyntheticSize::mixture;
    options.linears = DType::q4_0;
    options.head = DType::q6_k;
    options.layers = 10;
    const auto measure = [&](bool lock_host, const std::vector<int>& chunk_counts) {
      cuda::CudaBackendOptions settings;
      settings.expert_host = open_expert_host(bench.engine());
      const auto gpu = bench.open_gpu(settings, lock_host);
      const auto model = bind_synthetic(options, *gpu);
      const std::string note = fmt::format("{} MiB of experts a pass", gpu->expert_stream()->host_bytes() >> 20);
      for (const int chunks : chunk_counts) {
        bench.add(fmt::format("GPU, 10 layers of the 35B, experts streamed {}: {}", lock_host ? "page-locked" : "pageable",
                              chunks == 1 ? "one pass" : "four chunks"),
                  prompt_rate(bench, *model, kPrompt, chunks, kPrompt, "tok/s"), note);
      }
    };
    measure(false, {1});
    measure(true, {kChunks, 1});
  }
  bench.begin_group();
  const auto cpu = bench.open_cpu();
  const auto model = bind_synthetic({}, *cpu);
  bench.add("CPU, 0.8B q8_0: four chunks", prompt_rate(bench, *model, kPrompt, kChunks, kPrompt, "tok/s"));
  bench.add("CPU, 0.8B q8_0: one pass", prompt_rate(bench, *model, kPrompt, 1, kPrompt, "tok/s"));
}

void study_share(StudyBench& bench) {
  if (bench.skipped_without_gpu("share of the vendor GEMM's rate")) return;
  const auto gpu = bench.open_gpu();
  const bool bf16 = gpu->gemm_type() == cuda::GemmType::bf16;
  StudyFigure vendor;
  if (!vendor_rate(bench, *gpu, 4096, 4096, 4096, bf16, vendor)) {
    bench.skip("share of the vendor GEMM's rate: no cuBLAS was found");
    return;
  }
  const char* arithmetic = bf16 ? "BF16" : "FP32";
  bench.add(fmt::format("vendor GEMM, {}, 4096 x 4096 x 4096", arithmetic), vendor);
  SyntheticOptions options;
  options.size = SyntheticSize::vision;
  const auto model = bind_synthetic(options, *gpu);
  const auto share = [&](const std::string& what, const StudyFigure& figure) {
    bench.add(what, figure, fmt::format("{:.0f} % of the vendor's", 100 * figure.median / vendor.median)).times_better = 0;
  };
  // What the vendor's product gives at this model's own shapes: a language model's and the tower's before and after its merger.
  struct Shape {
    int m, n, k;
  };
  for (const Shape& s : {Shape{kPrompt, 3584, 1024}, Shape{1024, 1152, 1152}, Shape{256, 1152, 4304}}) {
    StudyFigure own_shape;
    vendor_rate(bench, *gpu, s.m, s.n, s.k, bf16, own_shape);
    share(fmt::format("vendor GEMM, {}, {} x {} x {}", arithmetic, s.m, s.n, s.k), own_shape);
  }
  // Matrix products alone are counted as work: attention, the delta rule and everything else only take time. As in use, the picture comes
  // first: what memory there is for unpacked weights goes to the tower before the language model.
  const model::VisionInput picture = study_picture(448, 448);
  share("tower, 448x448", bench.rate(*gpu, 1e-12 * tower_flops(model->config().vision, picture), "TFLOP/s", [&] { model->encode_image(picture); }));
  for (const int tokens : {kPrompt, 4096}) {
    const double work = 2e-12 * static_cast<double>(model->active_parameters(false)) * tokens;
    share(fmt::format("prefill of {} tokens", tokens), prompt_rate(bench, *model, tokens, std::max(1, tokens / 2048), work, "TFLOP/s"));
  }
  const double gigabytes = static_cast<double>(gpu->device().peak_bytes()) * 1e-9;
  bench.add("GPU memory", {gigabytes, gigabytes, gigabytes, "GB", 1}, "weights of both models, state, KV and scratch");
}

}  // namespace heirloom::tools
