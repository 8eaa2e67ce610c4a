// heirloom prune: removes the routed experts that matter least (REAP).
#include <chrono>
#include <cstdio>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/command_options.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/question_file.h"
#include "engine/bundled_models.h"
#include "engine/open_backend.h"
#include "tools/prune.h"

namespace heirloom::cli {
namespace {

struct PruneArguments {
  CommonOptions common;
  std::string model, output, calibration, method = "reap", type, vision_output;
  double keep = 0.5;
  std::uint64_t seed = 0;
  bool text_only = false, json = false;
};

/// The calibration's name for the record, and its prompts: bundled sets by name, questions from .jsonl files, or plain text.
std::pair<std::string, std::vector<Request>> read_calibration(std::string name, bool takes_pictures) {
  if (name.empty()) name = takes_pictures ? "mixed" : "text";
  std::vector<std::string> files;
  if (name == "text" || name == "mixed") {
    if (name == "mixed" && !takes_pictures) {
      fail(ErrorKind::usage, "--calibration mixed: this model has no vision part; use --calibration text");
    }
    files.push_back(find_bundled_file("calibration/text.jsonl").string());
    if (name == "mixed") files.push_back(find_bundled_file("calibration/pictures.jsonl").string());
  } else if (name.ends_with(".jsonl")) {
    files.push_back(name);
  } else {
    Request request;
    request.raw_text = read_text_file(name);
    if (request.raw_text->find_first_not_of(" \t\r\n") == std::string::npos) {
      fail(ErrorKind::bad_file, "{}: the file is empty; expected text to calibrate on", name);
    }
    return {std::filesystem::path(name).filename().string(), {std::move(request)}};
  }
  std::vector<Request> prompts;
  for (const Question& question : read_questions(files)) {
    Request& request = prompts.emplace_back(make_request(question));
    const Json& last = request.messages.empty() ? Json() : request.messages.back();
    request.add_generation_prompt = !(last.is_object() && last.contains("role") && last["role"] == "assistant");
  }
  return {std::filesystem::path(name).filename().string(), std::move(prompts)};
}

Json to_json(const tools::PruneReport& report, const PruneArguments& arguments, const std::string& calibration, double seconds) {
  Json json{{"output", arguments.output}, {"output_bytes", report.output_bytes}, {"method", arguments.method},
            {"keep", arguments.keep},     {"experts", report.experts},           {"kept", report.kept}};
  if (report.tokens > 0) {
    json["calibration"] = {{"name", calibration}, {"sequences", report.sequences}, {"tokens", report.tokens}, {"pictures", report.pictures}};
  }
  json["layers"] = Json::array();
  for (const tools::PrunedLayer& layer : report.layers) {
    Json line{{"layer", layer.layer}, {"kept", layer.kept}};
    if (layer.saliency_share) line["saliency_share"] = *layer.saliency_share;
    if (layer.token_share) line["token_share"] = *layer.token_share;
    json["layers"].push_back(std::move(line));
  }
  json["seconds"] = seconds;
  return json;
}

void print(const tools::PruneReport& report) {
  const bool scored = report.tokens > 0;
  std::printf("layer  kept     %sremoved experts\n", scored ? "saliency   tokens   " : "");
  for (const tools::PrunedLayer& layer : report.layers) {
    std::printf("%5d  %3zu/%-3d  ", layer.layer, layer.kept.size(), report.experts);
    if (scored) std::printf("%7.1f %% %6.1f %%  ", 100 * *layer.saliency_share, 100 * *layer.token_share);
    std::string removed;
    std::size_t next = 0;
    for (std::int64_t expert = 0; expert < report.experts; ++expert) {
      if (next < layer.kept.size() && layer.kept[next] == expert) {
        ++next;
      } else {
        removed += (removed.empty() ? "" : " ") + std::to_string(expert);
      }
    }
    std::printf("%s\n", removed.empty() ? "none" : removed.c_str());
  }
}

int run(PruneArguments& arguments) {
  const auto begin = std::chrono::steady_clock::now();
  EngineOptions engine = arguments.common.engine_options(arguments.model);
  tools::PruneOptions options;
  options.keep = arguments.keep;
  options.method = arguments.method == "reap"        ? tools::PruneMethod::reap
                   : arguments.method == "frequency" ? tools::PruneMethod::frequency
                                                     : tools::PruneMethod::random;
  options.seed = arguments.seed;
  options.text_only = arguments.text_only;
  options.vision_output = arguments.vision_output;
  options.threads = arguments.common.threads;
  if (!arguments.type.empty()) options.type = writable_type(arguments.type, "--type");
  catch_interrupts();
  options.progress = [bar = engine.progress](double fraction, std::string_view what) {
    if (take_interrupt()) throw Error(ErrorKind::cancelled, "interrupted; nothing was written");
    if (bar) bar(fraction, what);
  };

  const model::ModelFiles files = model::open_model_files(find_model(arguments.model), arguments.common.mmproj);
  tools::experts_kept(files, arguments.keep);  // before anything is read
  if (options.method != tools::PruneMethod::random) {
    std::tie(options.calibration_name, options.calibration) = read_calibration(arguments.calibration, files.config.vision.present);
  }
  const std::unique_ptr<ops::Backend> backend = open_backend(engine, files);
  log::info("heirloom: {}", backend->description());
  const tools::PruneReport report = tools::prune(files, *backend, arguments.output, options);
  for (const std::string& line : report.notes) log::info("note: {}", line);

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (arguments.json) {
    std::printf("%s\n", to_json(report, arguments, options.calibration_name, seconds).dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    print(report);
  }
  if (report.tokens > 0) {
    log::info("calibrated on {} tokens of {} sequences, {} pictures ({})", report.tokens, report.sequences, report.pictures,
              options.calibration_name);
  }
  log::info("{}: {} of {} experts in each of {} layers, {:.1f} MiB, {:.1f} s", arguments.output, report.kept, report.experts,
            report.layers.size(), static_cast<double>(report.output_bytes) / (1 << 20), seconds);
  return 0;
}

}  // namespace

void add_prune_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PruneArguments>();
  arguments->common.device = "cpu";  // one pass of prompts, layer by layer: a small GPU has nothing to plan for
  CLI::App* command = app.add_subcommand("prune", "remove the experts that matter least (REAP), write the smaller model");
  command->add_option("IN", arguments->model, "a mixture-of-experts model: a .gguf file, a Hugging Face folder, or demo-moe")->required();
  command->add_option("-o,--output,OUT", arguments->output, "NAME.gguf, or a folder to make (safetensors, as Hugging Face has it)")->required();
  command->add_option("--keep", arguments->keep, "share of each layer's experts that stays, up to 1")->capture_default_str();
  command->add_option("--calibration", arguments->calibration,
                      "text or mixed (bundled; mixed has pictures), a .jsonl of conversations, or a text file; default: what the model takes");
  command->add_option("--method", arguments->method, "reap, or to compare: frequency, random")
      ->check(CLI::IsMember({"reap", "frequency", "random"}))->capture_default_str();
  command->add_option("--seed", arguments->seed, "of --method random")->capture_default_str();
  command->add_option("--type", arguments->type, "weight type of the .gguf; default: each tensor keeps its own. " + std::string(kWritableTypes));
  command->add_option("--mmproj", arguments->common.mmproj, "vision part of a .gguf model in a file of its own; it stays as it is");
  command->add_flag("--text-only", arguments->text_only, "leave the vision part out of the .gguf");
  command->add_option("--vision-output", arguments->vision_output, "write the vision part to a file of its own (mmproj)");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_common_options(*command, arguments->common);
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
