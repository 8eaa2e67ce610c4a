// heirloom quantize: writes a model as GGUF in another weight type.
#include <cstdio>

#include "base/check.h"
#include "base/log.h"
#include "cli/command_options.h"
#include "cli/progress.h"
#include "engine/bundled_models.h"
#include "tools/quantize.h"

namespace heirloom::cli {
namespace {

struct QuantizeArguments {
  std::string model, output, mmproj, type = "q8_0", head_type, vision_type, vision_output, log_level = "info";
  bool text_only = false;
  int threads = 0;
};

int run(const QuantizeArguments& arguments) {
  log::set_level(log::parse_level(arguments.log_level));
  tools::QuantizeOptions options;
  options.type = writable_type(arguments.type, "--type");
  if (!arguments.head_type.empty()) options.head_type = writable_type(arguments.head_type, "--head-type");
  if (!arguments.vision_type.empty()) options.vision_type = writable_type(arguments.vision_type, "--vision-type");
  options.text_only = arguments.text_only;
  options.vision_output = arguments.vision_output;
  options.threads = arguments.threads;
  options.progress = progress_bar();
  const model::ModelFiles files = model::open_model_files(find_model(arguments.model), arguments.mmproj);
  const tools::QuantizeReport report = tools::quantize(files, arguments.output, options);
  for (const std::string& line : report.notes) log::info("note: {}", line);
  log::info("{}: {:.1f} MiB", arguments.output, static_cast<double>(report.output_bytes) / (1 << 20));
  return 0;
}

}  // namespace

void add_quantize_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<QuantizeArguments>();
  CLI::App* command = app.add_subcommand("quantize", "write a model as GGUF in another weight type");
  command->add_option("IN", arguments->model, "any model: a .gguf file, a Hugging Face folder, or a bundled name")->required();
  command->add_option("OUT", arguments->output, "the .gguf file to write")->required();
  command->add_option("--mmproj", arguments->mmproj, "vision part of a .gguf model in a file of its own");
  command->add_option("--type", arguments->type, std::string(kWritableTypes))->capture_default_str();
  command->add_option("--head-type", arguments->head_type, "type of the logit matrix; default q6_k beside 4-bit types, else --type");
  command->add_option("--vision-type", arguments->vision_type, "type of the vision part's matrices; default f16 beside quantised types");
  command->add_flag("--text-only", arguments->text_only, "leave the vision part out");
  command->add_option("--vision-output", arguments->vision_output, "write the vision part to a file of its own (mmproj)");
  command->add_option("--threads", arguments->threads, "CPU threads; 0 = physical cores")->check(CLI::Range(0, 1024));
  command->add_option("--log-level", arguments->log_level, "debug, info, warning, error or off")->capture_default_str();
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
