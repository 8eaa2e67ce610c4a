#include "tools/study/study.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "tools/study/study_bench.h"
#include "tools/study/synthetic_model.h"

namespace heirloom::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct PartEntry {
  const char *name, *title;
  void (*run)(StudyBench&);
  const char* papers;
};

// [A] is cited by the figures of its abstract. [goal]: what this project set itself; its text names the second paper's model.
constexpr PartEntry kParts[] = {
    {"gemm", "own 64x64 tile against the vendor's GEMM", study_gemm,
     "[A] own kernel rewrites did not help; [H200] the own tile reaches 55 to 77 % of cublasSgemm from 947 rows on"},
    {"dequantise", "weights unpacked in every tile, once a product, or kept unpacked; a dense FFN of the 0.8B, 947 rows",
     study_dequantise, "no figure at hand"},
    {"delta", "delta rule of 2,048 tokens between its projections, a layer of the 0.8B", study_delta,
     "[goal] chunked at least 2.8 times the sequential form on compute capability 2.0"},
    {"attention", "softmax attention of a whole prompt, a layer of the 0.8B (8 query, 2 KV heads of 256)", study_attention,
     "[goal] prefill at 10k tokens at least 85 % of the speed at 2k"},
    {"copies", "256 MiB from host memory to the GPU", study_copies, "[goal] prefill with streamed experts at least 1.5 times as fast page-locked"},
    {"decode", "64 tokens decoded by the 0.8B with 8-bit and with 4-bit weights", study_decode,
     "[A] 2.8 -> 8.6 tok/s (3.1 times) with 4-bit weights and an integer SIMD kernel on the CPU, 35B"},
    {"head", "the 35B's logits of one token (248,320 x 2,048, Q6_K) and their argmax, hidden state and id in host memory", study_head,
     "[A] moving the head to the idle GPU did not help"},
    {"prefill", "947 tokens in one pass and in four chunks", study_prefill,
     "[A] 57.2 -> 37.5 s (1.5 times) by page-locked experts, one pass and NUMA interleaving together; [goal] one pass at least 1.3 times four chunks"},
    {"image", "SigLIP2 so400m with the window merger (27 layers, F16 weights): one picture's features", study_image,
     "[goal] at least 5 times the naive-attention form on compute capability 2.0"},
    {"question", "a picture and 32 tokens of text, from pixels to the first token; MiniCPM-V-4.6 with an 8-bit language model", study_question,
     "[goal] 448x448 within 40 ms and 896x672 within 100 ms on an H200; everything resident in 5.2 GB"},
    {"share", "share of the vendor GEMM's rate, everything on the GPU", study_share,
     "[goal] prefill and tower at least 60 % of the vendor's FP32 rate under --profile fermi"},
    {"needle", "a secret code at 60 % of 10,000 tokens, asked of demo-moe", study_needle, "[goal] answered right"},
};

}  // namespace

const char* const kStudySources =
    "[A] arXiv:2606.24031, abstract: Qwen3.6-35B-A3B (4 bit) on a Tesla C2075 of 2011; [H200] measured before on one H200; [goal] set by this "
    "project. Models are synthetic (real dimensions, random weights) except for the needle's.";

cuda::DeviceOptions StudyBench::device_options(bool lock_host) const {
  cuda::DeviceOptions device;
  device.index = device_.cuda;
  device.arch = engine().cuda_arch;
  device.vram_bytes = engine().vram_bytes;
  device.fermi = engine().profile == "fermi";
  device.lock_host = lock_host;
  return device;
}

void StudyBench::apply_gemm(cuda::CudaBackendOptions& settings) const {
  if (!settings.gemm && engine().gemm == "f32") settings.gemm = cuda::GemmType::f32;
  if (!settings.gemm && engine().gemm == "bf16") settings.gemm = cuda::GemmType::bf16;
}

bool StudyBench::skipped_without_gpu(const std::string& what) {
  if (has_gpu()) return false;
  constexpr std::string_view kPrefix = "no GPU: ";  // as the device report begins
  const std::string& why = device_.why_not;
  skip(fmt::format("{}: needs a GPU ({})", what, why.starts_with(kPrefix) ? why.substr(kPrefix.size()) : why));
  return true;
}

StudyFigure StudyBench::time(ops::Backend& backend, const std::function<void()>& run) const {
  constexpr double kLong = 5000, kSample = 10;
  const auto milliseconds = [&](int calls) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) run();
    backend.synchronize();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count() / calls;
  };
  backend.synchronize();
  std::vector<double> samples{milliseconds(1)};
  if (samples[0] < kLong) {
    const int calls = static_cast<int>(std::clamp(kSample / std::max(milliseconds(1), 1e-3), 1.0, 1000.0));
    samples.clear();
    for (int i = 0; i < options_.repeat; ++i) samples.push_back(milliseconds(calls));
  }
  std::ranges::sort(samples);
  return {samples.front(), samples[samples.size() / 2], samples.back(), "ms", static_cast<int>(samples.size())};
}

StudyFigure StudyBench::rate(ops::Backend& backend, double amount, std::string unit, const std::function<void()>& run) const {
  const StudyFigure t = time(backend, run);
  return {amount / t.max * 1e3, amount / t.median * 1e3, amount / t.min * 1e3, std::move(unit), t.samples};
}

StudyRow& StudyBench::add(std::string what, StudyFigure figure, std::string note) {
  StudyRow& row = part_->rows.emplace_back();
  row.what = std::move(what);
  row.figure = std::move(figure);
  row.note = std::move(note);
  if (first_ && first_->unit == row.figure.unit && row.figure.median > 0) {
    row.times_better = row.figure.unit == "ms" ? first_->median / row.figure.median : row.figure.median / first_->median;
  }
  if (!first_) first_ = std::make_unique<StudyFigure>(row.figure);
  return row;
}

std::unique_ptr<model::Model> bind_synthetic(const SyntheticOptions& options, ops::Backend& backend) {
  return model::bind_model(synthetic_model(options), backend);
}

std::vector<std::string> study_part_names() {
  std::vector<std::string> names;
  for (const PartEntry& part : kParts) names.push_back(part.name);
  return names;
}

StudyReport run_study(const StudyOptions& options) {
  const std::vector<std::string> names = study_part_names();
  for (const std::string& name : options.only) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::string known;
    for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
    fail(ErrorKind::usage, "--only {}: no part of the study is called so; expected {}", name, known);
  }
  const DeviceChoice device = choose_device(options.engine);
  StudyBench bench(options, device);
  StudyReport report;
  report.cpu = bench.open_cpu()->description();
  if (bench.has_gpu()) report.gpu = bench.open_gpu()->description();
  const auto wanted = [&](const PartEntry& part) {
    return options.only.empty() || std::ranges::find(options.only, part.name) != options.only.end();
  };
  const auto total = static_cast<double>(std::ranges::count_if(kParts, wanted));
  for (const PartEntry& entry : kParts) {
    if (!wanted(entry)) continue;
    if (options.progress) options.progress(static_cast<double>(report.parts.size()) / total, entry.name);
    StudyPart& part = report.parts.emplace_back();
    part.name = entry.name;
    part.title = entry.title;
    part.papers = entry.papers;
    bench.start(part);
    try {
      entry.run(bench);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::does_not_fit) throw error.wrap(entry.name);
      bench.skip(fmt::format("the rest: {}", error.what()));
    }
  }
  if (options.progress) options.progress(1, "study");
  return report;
}

}  // namespace heirloom::tools
