// heirloom info: what a model file is, without loading its weights.
#include <cstdio>
#include <map>

#include "base/json.h"
#include "base/log.h"
#include "cli/command_options.h"
#include "engine/bundled_models.h"
#include "engine/model_info.h"

namespace heirloom::cli {
namespace {

struct InfoArguments {
  std::string model, mmproj, log_level = "info";
  bool json = false;
};

void print_value(const std::string& key, const Json& value) {
  if (value.is_object()) {
    std::printf("%s:\n", key.c_str());
    for (const auto& [name, inner] : value.items()) print_value("  " + name, inner);
    return;
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::printf("%-36s %s\n", key.c_str(), text.c_str());
}

int run(const InfoArguments& arguments) {
  log::set_level(log::parse_level(arguments.log_level));
  const model::ModelFiles files = model::open_model_files(find_model(arguments.model), arguments.mmproj);
  const Json info = model_info(files);
  if (arguments.json) {
    std::printf("%s\n", info.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    for (const auto& [key, value] : info.items()) print_value(key, value);
  }
  return 0;
}

}  // namespace

void add_info_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* command = app.add_subcommand("info", "architecture, parameters, types, context and template of a model");
  command->add_option("MODEL", arguments->model, "a .gguf file, a Hugging Face folder, or demo-vl / demo-moe")->required();
  command->add_option("--mmproj", arguments->mmproj, "vision part of a .gguf model in a file of its own");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  command->add_option("--log-level", arguments->log_level, "debug, info, warning, error or off")->capture_default_str();
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
