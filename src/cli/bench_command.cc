// heirloom bench: prefill and decode speed, with the share of what this machine can do at most; with --study, the papers' experiments.
#include <cstdio>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/machine_probe.h"
#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "base/profiler_report.h"
#include "cli/cache_options.h"
#include "cli/command_options.h"
#include "cli/progress.h"
#include "cli/study_table.h"
#include "engine/bundled_models.h"
#include "engine/open_backend.h"
#include "model/model_files.h"
#include "tools/bench.h"
#include "tools/study/study.h"

namespace heirloom::cli {
namespace {

struct BenchArguments {
  CommonOptions common;
  std::string model;
  tools::BenchOptions bench;
  std::vector<std::string> only;  // parts of the study
  int repeat = 0;                 // 0 = 5, of the study 3
  bool json = false, study = false;
};

int run_study(const BenchArguments& arguments) {
  if (!arguments.model.empty()) {
    fail(ErrorKind::usage, "bench --study takes no MODEL ({}): it makes full-size models of its own", arguments.model);
  }
  tools::StudyOptions options;
  options.engine = arguments.common.engine_options("");
  options.only = arguments.only;
  if (arguments.repeat > 0) options.repeat = arguments.repeat;
  options.progress = options.engine.progress;
  const tools::StudyReport report = tools::run_study(options);
  const std::string text = arguments.json ? study_json(report).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n" : study_table(report);
  std::fputs(text.c_str(), stdout);
  return 0;
}

int run(BenchArguments& arguments) {
  if (arguments.study) return run_study(arguments);
  if (arguments.model.empty()) fail(ErrorKind::usage, "bench: MODEL is missing; give one, or --study");
  if (arguments.repeat > 0) arguments.bench.repeat = arguments.repeat;
  const EngineOptions options = arguments.common.engine_options(arguments.model);
  const model::ModelFiles files = model::open_model_files(find_model(arguments.model), arguments.common.mmproj);
  Profiler profiler;
  const std::unique_ptr<ops::Backend> backend = open_backend(options, files, arguments.common.timings ? &profiler : nullptr);
  const auto progress = options.progress;
  const auto model = model::bind_model(files, *backend, [&](double fraction) {
    if (progress) progress(fraction, "load");
  });
  arguments.bench.progress = progress;
  arguments.bench.chunk_tokens = static_cast<int>(largest_chunk(*backend));  // as prompts are served
  if (!options.kv_type.empty()) arguments.bench.kv_type = parse_dtype(options.kv_type).value();
  tools::BenchMachine machine;
  int threads = 0;
  if (auto* cpu_backend = dynamic_cast<cpu::CpuBackend*>(backend.get())) {
    const cpu::MachineLimits limits = cpu::measure_machine(cpu_backend->pool(), cpu_backend->tier());
    machine = {limits.read_bytes_per_s, limits.ops_per_s};
    threads = cpu_backend->pool().num_threads();
  }
  profiler.reset();
  const std::vector<tools::BenchResult> results = tools::bench(*model, machine, arguments.bench);

  Json list = Json::array();
  for (const tools::BenchResult& r : results) {
    list.push_back({{"test", r.test},
                    {"n", r.n},
                    {"depth", r.depth},
                    {"threads", threads},
                    {"tok_s", {{"min", r.min_tok_s}, {"median", r.median_tok_s}, {"max", r.max_tok_s}}},
                    {"bytes_per_token", r.bytes_per_token},
                    {"bandwidth_share", r.bandwidth_share},
                    {"flops_share", r.flops_share},
                    {"peak_rss_bytes", r.peak_rss_bytes}});
  }
  if (arguments.json) {
    const Json json{{"machine",
                     {{"backend", backend->description()},
                      {"read_gb_s", machine.read_bytes_per_s / 1e9},
                      {"gop_s", machine.ops_per_s / 1e9}}},
                    {"model", files.name},
                    {"results", list}};
    std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s on %s", files.name.c_str(), backend->description().c_str());
    if (machine.read_bytes_per_s > 0) {
      std::printf("; the machine reads %.1f GB/s and does %.0f G 8-bit op/s", machine.read_bytes_per_s / 1e9, machine.ops_per_s / 1e9);
    }
    std::printf("\n%-8s %6s %7s %30s %12s %10s %9s %10s\n", "test", "n", "depth", "tok/s min / median / max", "MB/token", "of read", "of ops", "peak RSS");
    for (const tools::BenchResult& r : results) {
      std::printf("%-8s %6d %7d %9.1f / %8.1f / %8.1f %12.1f %9.1f%% %8.1f%% %7.0f MB\n", r.test.c_str(), r.n, r.depth, r.min_tok_s,
                  r.median_tok_s, r.max_tok_s, r.bytes_per_token / 1e6, 100 * r.bandwidth_share, 100 * r.flops_share,
                  static_cast<double>(r.peak_rss_bytes) / 1e6);
    }
  }
  if (arguments.common.timings) print_timings(timings_report(profiler));
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "prefill and decode speed, and the share of this machine's limits");
  add_model_option(*command, arguments->model, arguments->common);
  command->get_option("MODEL")->required(false);  // --study has none
  tools::BenchOptions& bench = arguments->bench;
  command->add_option("--prefill", bench.prefill, "prompt lengths, e.g. 512,947")->delimiter(',')->check(CLI::Range(1, 1 << 20))->capture_default_str();
  command->add_option("--decode", bench.decode, "numbers of decoded tokens")->delimiter(',')->check(CLI::Range(1, 1 << 20))->capture_default_str();
  command->add_option("--depth", bench.depth, "tokens already in the context")->delimiter(',')->check(CLI::Range(0, 1 << 20))->capture_default_str();
  command->add_option("--repeat", arguments->repeat, "repetitions; default: 5, of the study 3")->check(CLI::Range(1, 1000));
  CLI::Option* study = command->add_flag("--study", arguments->study, "the papers' experiments on this machine, instead of a MODEL");
  command->add_option("--only", arguments->only, "parts of the study")->delimiter(',')->needs(study)->check(CLI::IsMember(tools::study_part_names()));
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_common_options(*command, arguments->common);
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
