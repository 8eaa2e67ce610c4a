#include "cli/command_options.h"

#include <cctype>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "cli/progress.h"

namespace heirloom::cli {

EngineOptions CommonOptions::engine_options(const std::string& model) const {
  log::set_level(log::parse_level(log_level));
  EngineOptions engine;
  engine.model = model;
  engine.mmproj = mmproj;
  engine.device = device;
  engine.threads = threads;
  engine.cpu_isa = cpu_isa;
  engine.cuda_arch = cuda_arch;
  engine.profile = profile;
  engine.gemm = gemm;
  engine.kv_type = kv_type;
  engine.downsample = downsample;
  engine.timings = timings;
  if (!vram.empty()) engine.vram_bytes = parse_size(vram, "--vram");
  engine.progress = progress_bar();
  return engine;
}

void add_common_options(CLI::App& command, CommonOptions& options) {
  const std::string group = "Hardware and logging";
  command.add_option("--device", options.device, "auto, cpu or cuda[:N]")->capture_default_str()->group(group);
  command.add_option("--threads", options.threads, "CPU threads; 0 = physical cores")
      ->check(CLI::Range(0, 1024))->capture_default_str()->group(group);
  command.add_option("--cpu-isa", options.cpu_isa, "force a CPU tier: scalar, ssse3, avx2, avx512, avx512_vnni, amx (never taken by itself: avx512_vnni is faster)")->group(group);
  command.add_option("--cuda-arch", options.cuda_arch, "force a GPU kernel tier: sm20, ...")->group(group);
  command.add_option("--gemm", options.gemm, "arithmetic of GPU matrix products: f32 or bf16; default: the card's best")
      ->group(group);
  command.add_option("--vram", options.vram, "GPU memory to use at most, e.g. 6GiB")->group(group);
  command.add_option("--profile", options.profile, "fermi: keep to the limits of a 2011 card")
      ->check(CLI::IsMember({"fermi"}))->group(group);
  command.add_flag("--timings", options.timings, "report time, bytes and rate of each component on stderr")->group(group);
  command.add_option("--log-level", options.log_level, "debug, info, warning, error or off")->capture_default_str()->group(group);
}

void add_model_option(CLI::App& command, std::string& model, CommonOptions& options) {
  command.add_option("MODEL", model, "a .gguf file, a Hugging Face folder, or demo-vl / demo-moe")->required();
  command.add_option("--mmproj", options.mmproj, "vision part of a .gguf model in a file of its own");
  command.add_option("--kv-type", options.kv_type, "KV cache entries: f32, f16 or bf16")->check(CLI::IsMember({"f32", "f16", "bf16"}));
  command.add_option("--downsample", options.downsample, "picture detail of MiniCPM-V: 16x or 4x")->check(CLI::IsMember({"16x", "4x"}));
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  const std::string group = "Sampling (defaults come from the model)";
  command.add_option("--temperature", options.temperature, "0 = greedy")->check(CLI::Range(0.0, 100.0))->group(group);
  command.add_option("--top-k", options.top_k, "0 = off")->check(CLI::Range(0, 1 << 30))->group(group);
  command.add_option("--top-p", options.top_p)->check(CLI::Range(0.0, 1.0))->group(group);
  command.add_option("--min-p", options.min_p)->check(CLI::Range(0.0, 1.0))->group(group);
  command.add_option("--presence-penalty", options.presence)->check(CLI::Range(-2.0, 2.0))->group(group);
  command.add_option("--frequency-penalty", options.frequency)->check(CLI::Range(-2.0, 2.0))->group(group);
  command.add_option("--repetition-penalty", options.repetition, "1 = off")->check(CLI::Range(0.01, 10.0))->group(group);
  command.add_option("--seed", options.seed, "makes a sampled run repeatable")->check(CLI::NonNegativeNumber)->group(group);
}

SamplingParams SamplingOptions::over(SamplingParams params) const {
  if (temperature >= 0) params.temperature = static_cast<float>(temperature);
  if (top_k >= 0) params.top_k = top_k;
  if (top_p >= 0) params.top_p = static_cast<float>(top_p);
  if (min_p >= 0) params.min_p = static_cast<float>(min_p);
  if (presence != 0) params.presence_penalty = static_cast<float>(presence);
  if (frequency != 0) params.frequency_penalty = static_cast<float>(frequency);
  if (repetition > 0) params.repetition_penalty = static_cast<float>(repetition);
  if (seed >= 0) params.seed = static_cast<std::uint64_t>(seed);
  return params;
}

DType writable_type(const std::string& name, const char* option) {
  const std::optional<DType> type = parse_dtype(name);
  if (!type) fail(ErrorKind::usage, "{} {}: unknown type; use one of {}", option, name, kWritableTypes);
  return *type;
}

std::uint64_t parse_size(const std::string& text, const std::string& option) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.size() > 1 && unit.ends_with("b")) unit.pop_back();
  int shift = -1;
  if (unit.empty() || unit == "b") shift = 0;
  if (unit == "k") shift = 10;
  if (unit == "m") shift = 20;
  if (unit == "g") shift = 30;
  if (unit == "t") shift = 40;
  const double bytes = shift < 0 ? -1 : std::ldexp(number, shift);
  if (error != std::errc() || !(bytes >= 0) || bytes > 1e18) {
    fail(ErrorKind::usage, "{} {}: expected a size such as 6GiB, 512M or 1000000", option, text);
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace heirloom::cli
