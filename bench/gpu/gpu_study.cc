// Speed of the GPU backend on full-size synthetic models, without files: decode and prefill tok/s at growing context, bytes a
// token, time by kernel. Prints one line a measurement: minimum, median and maximum over the repeats.
//
//   gpu_study [--model dense|moe|picture] [--layers N] [--linears q8_0|q4_0|...] [--head q8_0] [--prefill 947,4096] [--decode 128]
//             [--depth 0,10240]
//             [--repeat 5] [--arch sm20] [--fermi] [--gemm f32|bf16] [--kv f32|f16] [--no-graphs] [--no-fusion] [--no-layers] [--kernels]
//             [--vram MiB] [--hybrid] [--threads N] [--host-rows N] [--pageable] [--chunks N]
//             [--timeline FILE] [--expert-mib N] [--unpack-each] [--picture 448,448]
// picture: features of one picture (--picture 448,448) by MiniCPM-V-4.6's tower, instead of tokens. --hybrid keeps experts in host memory; --chunks also measures prefill in N steps; --timeline writes one line a streamed tensor;
// --unpack-each unpacks weights at every use, as where memory is short.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "engine/cpu_experts.h"
#include "tools/sequence.h"
#include "tools/study/study_picture.h"
#include "tools/study/synthetic_model.h"

namespace heirloom {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

std::vector<std::int32_t> some_tokens(int count) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(i * 37 % 1000);
  return ids;
}

void print_rates(const char* test, int n, int depth, std::vector<double> rates, const char* note = "") {
  std::ranges::sort(rates);
  std::printf("%-8s n %5d depth %6d   min %10.1f   median %10.1f   max %10.1f tok/s%s\n", test, n, depth, rates.front(),
              rates[rates.size() / 2], rates.back(), note);
  std::fflush(stdout);
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(std::stoi(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return out;
}

int run(const std::map<std::string, std::string>& options) {
  const auto get = [&](const char* name, const char* fallback) {
    const auto found = options.find(name);
    return found == options.end() ? std::string(fallback) : found->second;
  };
  for (const cuda::DeviceReport& report : cuda::list_devices()) std::printf("%s\n", report.line.c_str());
  cuda::DeviceOptions device;
  device.arch = get("arch", "");
  device.fermi = options.contains("fermi");
  device.graphs = !options.contains("no-graphs");
  device.time_kernels = options.contains("kernels");
  device.lock_host = !options.contains("pageable");
  device.vram_bytes = std::stoull(get("vram", "0")) << 20;
  cuda::CudaBackendOptions settings;
  settings.fuse = !options.contains("no-fusion");
  settings.layer_kernels = !options.contains("no-layers");
  settings.weight_copies = !options.contains("unpack-each");
  settings.expert_bytes = std::stoull(get("expert-mib", "0")) << 20;
  settings.host_expert_rows = std::stoi(get("host-rows", "16"));
  if (options.contains("hybrid")) {
    cpu::CpuBackendOptions cpu_options;
    cpu_options.threads = std::stoi(get("threads", "0"));
    cpu_options.interleave_weights = true;
    settings.expert_host = std::make_shared<engine::CpuExperts>(std::make_unique<cpu::CpuBackend>(cpu_options));
  }
  if (get("gemm", "") == "f32") settings.gemm = cuda::GemmType::f32;
  if (get("gemm", "") == "bf16") settings.gemm = cuda::GemmType::bf16;
  cuda::CudaBackend backend(cuda::open_device(device), settings);

  const std::string name = get("model", "dense");
  if (name != "dense" && name != "moe" && name != "picture") fail(ErrorKind::usage, "--model {}: expected dense, moe or picture", name);
  tools::SyntheticOptions size;
  if (name == "picture") size.size = tools::SyntheticSize::vision;
  if (name == "moe") size.size = tools::SyntheticSize::mixture;
  size.layers = std::stoi(get("layers", "0"));
  size.linears = parse_dtype(get("linears", name == "moe" ? "q4_0" : "q8_0")).value();
  size.head = parse_dtype(get("head", name == "moe" ? "q6_k" : "q8_0")).value();
  auto start = Clock::now();
  const std::unique_ptr<model::Model> model = model::bind_model(tools::synthetic_model(size), backend);
  std::printf("%s %s, %s, synthetic weights made and uploaded in %.0f ms; %.1f MB of weights, %.1f MB a token\n", name.c_str(),
              std::string(dtype_name(size.linears)).c_str(), backend.description().c_str(), ms_since(start),
              static_cast<double>(model->weight_bytes()) * 1e-6, static_cast<double>(model->active_weight_bytes()) * 1e-6);
  const int repeat = std::stoi(get("repeat", "5"));
  const DType kv = parse_dtype(get("kv", "f16")).value();
  const auto report_kernels = [&](int steps) {
    if (!device.time_kernels) return;
    std::vector<std::pair<std::string, cuda::KernelTime>> times(backend.device().kernel_times().begin(),
                                                                backend.device().kernel_times().end());
    std::ranges::sort(times, [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
    for (const auto& [kernel, time] : times) {
      std::printf("    %-32s %7.1f launches a step   %9.3f ms a step\n", kernel.c_str(),
                  static_cast<double>(time.launches) / steps, time.milliseconds / steps);
    }
    backend.device().reset_kernel_times();
  };
  if (name == "picture") {
    const std::vector<int> side = numbers(get("picture", "448,448"));
    if (side.size() != 2) fail(ErrorKind::usage, "--picture {}: expected width,height", get("picture", ""));
    const model::VisionInput picture = tools::study_picture(static_cast<std::uint32_t>(side[0]), static_cast<std::uint32_t>(side[1]));
    std::vector<double> times;
    for (int r = 0; r <= repeat; ++r) {
      backend.device().reset_kernel_times();
      backend.synchronize();
      start = Clock::now();
      model->encode_image(picture);
      backend.synchronize();
      if (r > 0) times.push_back(ms_since(start));
    }
    std::ranges::sort(times);
    std::printf("tower, %dx%d   min %.3f   median %.3f   max %.3f ms\n", side[0], side[1], times.front(), times[times.size() / 2], times.back());
    report_kernels(1);
    std::printf("device memory: %.1f MiB at most\n", static_cast<double>(backend.device().peak_bytes()) / (1 << 20));
    return 0;
  }
  const int chunks = std::stoi(get("chunks", "1"));
  for (const int n : numbers(get("prefill", "947,4096"))) {
    for (const int parts : chunks > 1 ? std::vector<int>{1, chunks} : std::vector<int>{1}) {
      std::vector<double> rates;
      const std::vector<std::int32_t> ids = some_tokens(n);
      tools::Sequence sequence(*model, kv);
      sequence.reserve(n);
      for (int r = 0; r <= repeat; ++r) {
        sequence.clear();
        backend.device().reset_kernel_times();
        backend.synchronize();
        if (backend.expert_stream() && options.contains("timeline") && r == repeat && parts == 1) backend.expert_stream()->start_trace();
        start = Clock::now();
        for (int part = 0, past = 0; part < parts; ++part) {
          const int rows = (n - past) / (parts - part);
          sequence.feed_greedy({ids.data() + past, static_cast<std::size_t>(rows)});
          past += rows;
        }
        if (r > 0) rates.push_back(n / ms_since(start) * 1e3);
      }
      print_rates("prefill", n, 0, rates, parts > 1 ? (" in " + std::to_string(parts) + " chunks").c_str() : "");
      report_kernels(1);
    }
    if (backend.expert_stream() && options.contains("timeline")) {
      std::FILE* file = std::fopen((get("timeline", "timeline") + "_" + std::to_string(n)).c_str(), "w");
      std::fprintf(file, "tensor,copy_begin_ms,copy_end_ms,use_begin_ms,use_end_ms\n");
      double copying = 0, using_it = 0, waiting = 0, last = 0;
      for (const cuda::StreamTrace& t : backend.expert_stream()->stop_trace()) {
        std::fprintf(file, "%zu,%.3f,%.3f,%.3f,%.3f\n", t.tensor, t.copy_begin, t.copy_end, t.use_begin, t.use_end);
        copying += t.copy_end - t.copy_begin;
        if (t.use_begin > last) waiting += t.use_begin - last;
        using_it += t.use_end - std::max(t.use_begin, last);
        last = std::max(last, t.use_end);
      }
      std::fclose(file);
      std::printf("    copies %.1f ms, use of the copied tensors %.1f ms, other work and waiting between them %.1f ms\n", copying, using_it, waiting);
    }
  }
  const int tokens = std::stoi(get("decode", "128"));
  for (const int depth : numbers(get("depth", "0,10240"))) {
    if (tokens == 0) break;
    tools::Sequence context(*model, kv);
    for (int past = 0; past < depth; past += 2048) {
      const std::vector<std::int32_t> ids = some_tokens(std::min(2048, depth - past));
      context.feed_greedy(ids);
    }
    std::vector<double> rates;
    std::uint64_t before = 0;
    for (int r = 0; r <= repeat; ++r) {
      tools::Sequence sequence = context.fork();
      sequence.reserve(depth + tokens);
      if (r == 1) before = backend.device().launches();
      backend.device().reset_kernel_times();
      backend.synchronize();
      start = Clock::now();
      std::int32_t id = 1;
      for (int i = 0; i < tokens; ++i) id = sequence.feed_greedy({&id, 1});
      if (r > 0) rates.push_back(tokens / ms_since(start) * 1e3);
    }
    print_rates("decode", tokens, depth, rates);
    std::printf("    %.1f launches a step issued by the host\n",
                static_cast<double>(backend.device().launches() - before) / (tokens * repeat));
    report_kernels(tokens);
  }
  std::printf("device memory: %.1f MiB at most\n", static_cast<double>(backend.device().peak_bytes()) / (1 << 20));
  return 0;
}

}  // namespace
}  // namespace heirloom

int main(int argc, char** argv) {
  static const std::set<std::string> kOptions{"model", "layers", "linears", "head", "prefill", "decode", "depth", "repeat", "arch", "fermi", "gemm", "kv",
                                              "no-graphs", "no-fusion", "no-layers", "kernels", "vram", "hybrid", "threads", "host-rows", "pageable", "chunks",
                                              "timeline", "expert-mib", "unpack-each", "picture"};
  std::map<std::string, std::string> options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--") || !kOptions.contains(name.substr(2))) return std::fprintf(stderr, "gpu_study: %s: not an option\n", argv[i]), 2;
    const bool has_value = i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0;
    options[name.substr(2)] = has_value ? argv[++i] : "";
  }
  try {
    return heirloom::run(options);
  } catch (const heirloom::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return heirloom::exit_code(error.kind());
  }
}
