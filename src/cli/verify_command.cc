// heirloom verify: stage by stage against the reference implementation's dumps.
#include <cstdio>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/command_options.h"
#include "engine/bundled_models.h"
#include "engine/open_backend.h"
#include "tools/rounding_bounds.h"
#include "tools/verify.h"

namespace heirloom::cli {
namespace {

struct VerifyArguments {
  CommonOptions common;
  std::string model, reference, images, rounding;
  double tolerance = 1e-3;
  bool json = false;
};

Json to_json(const tools::StageResult& stage) {
  Json json{{"dump", stage.dump}, {"name", stage.name}, {"max_abs", stage.max_abs}, {"max_ref", stage.max_ref},
            {"rel_l2", stage.rel_l2}, {"share", stage.share}, {"ok", stage.ok}};
  if (stage.kl) json["kl"] = *stage.kl;
  if (!stage.note.empty()) json["note"] = stage.note;
  return json;
}

int run(const VerifyArguments& arguments) {
  EngineOptions options = arguments.common.engine_options(arguments.model);
  if (options.gemm.empty()) options.gemm = "f32";  // bf16 products round at 2^-9: a bound of 1e-3 is for f32
  const bool bf16 = options.gemm == "bf16";
  if (!arguments.rounding.empty() && !bf16) fail(ErrorKind::usage, "--rounding is for --gemm bf16: the products of this run are FP32");
  const model::ModelFiles files = model::open_model_files(find_model(arguments.model), arguments.common.mmproj);
  const std::unique_ptr<ops::Backend> backend = open_backend(options, files);
  log::info("heirloom: {}", backend->description());
  const std::unique_ptr<model::Model> model = model::bind_model(files, *backend);
  const tools::VerifyReport report =
      tools::verify(files, *model, {arguments.reference, arguments.images, arguments.tolerance, bf16, arguments.rounding});
  for (const std::string& line : report.passed_over) log::info("passed over: {}", line);

  const tools::StageResult* worst = report.worst();
  if (arguments.json) {
    Json json{{"stages", Json::array()}, {"worst", worst ? to_json(*worst) : Json()}, {"ok", report.ok()}};
    for (const tools::StageResult& stage : report.stages) json["stages"].push_back(to_json(stage));
    std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    int failed = 0;
    for (const tools::StageResult& stage : report.stages) {
      failed += !stage.ok;
      std::printf("%s %-28s %-32s max_abs %.2e  max_ref %.2e  rel_l2 %.2e%s%s%s\n", stage.ok ? "ok  " : "FAIL",
                  stage.dump.c_str(), stage.name.c_str(), stage.max_abs, stage.max_ref, stage.rel_l2,
                  stage.kl ? fmt::format("  KL {:.2e}", *stage.kl).c_str() : "", stage.note.empty() ? "" : "  ", stage.note.c_str());
    }
    std::printf("%zu stages, %d failed, tolerance %g", report.stages.size(), failed, arguments.tolerance);
    if (bf16) {
      std::printf("; %zu beyond it within %g times what rounding to bf16 moves the reference", report.judged_by_rounding,
                  tools::RoundingBounds::kFactor);
    }
    std::printf("\n");
    if (worst != nullptr) std::printf("worst: %s %s, %.2g of its bound\n", worst->dump.c_str(), worst->name.c_str(), worst->share);
  }
  return report.ok() ? 0 : 1;
}

}  // namespace

void add_verify_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand("verify", "compare every stage with the reference implementation's dump");
  add_model_option(*command, arguments->model, arguments->common);
  command->add_option("--reference", arguments->reference, "a dump (.safetensors) or a folder of them")->required();
  command->add_option("--images", arguments->images, "folder of the dump's pictures; default: images/ two folders above");
  command->add_option("--tolerance", arguments->tolerance, "allowed deviation")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--rounding", arguments->rounding,
                      "bounds for --gemm bf16: a file of tests/golden/rounding or the folder; default: rounding/ two folders above");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_common_options(*command, arguments->common);
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
