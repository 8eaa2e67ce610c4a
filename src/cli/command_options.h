// Options that several commands share, and how they are written on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "heirloom/engine.h"

namespace heirloom::cli {

struct CommonOptions {
  std::string device = "auto", cpu_isa, cuda_arch, gemm, vram, profile, log_level = "info", mmproj, kv_type, downsample;
  int threads = 0;
  bool timings = false;

  /// Applies --log-level and gives the part of EngineOptions that these options speak of.
  EngineOptions engine_options(const std::string& model) const;
};

/// Hardware and logging options.
void add_common_options(CLI::App& command, CommonOptions& options);
/// The positional MODEL and --mmproj.
void add_model_option(CLI::App& command, std::string& model, CommonOptions& options);

struct SamplingOptions {
  double temperature = -1, top_p = -1, min_p = -1, presence = 0, frequency = 0, repetition = 0;
  int top_k = -1;
  std::int64_t seed = -1;

  /// The model's defaults with what was given on the command line put over them.
  SamplingParams over(SamplingParams defaults) const;
};
void add_sampling_options(CLI::App& command, SamplingOptions& options);

/// Weight types that quantize and prune write, for help texts.
inline constexpr std::string_view kWritableTypes = "q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, mxfp4, f16, bf16, f32";
/// One of them by name. Error{usage} naming `option`.
DType writable_type(const std::string& name, const char* option);

/// "6GiB", "512M", "1.5g", "1000000" -> bytes. Error{usage}.
std::uint64_t parse_size(const std::string& text, const std::string& option);

/// Registers one command: `action` runs after parsing and returns the exit code. main() calls each add_*.
using Action = std::function<int()>;
void add_run_command(CLI::App& app, Action& action);
void add_chat_command(CLI::App& app, Action& action);
void add_info_command(CLI::App& app, Action& action);
void add_tokenize_command(CLI::App& app, Action& action);
void add_serve_command(CLI::App& app, Action& action);
void add_verify_command(CLI::App& app, Action& action);
void add_eval_command(CLI::App& app, Action& action);
void add_quantize_command(CLI::App& app, Action& action);
void add_prune_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);

}  // namespace heirloom::cli
