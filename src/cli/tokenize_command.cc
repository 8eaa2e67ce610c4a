// heirloom tokenize: text to ids and the pieces they stand for.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/json.h"
#include "base/log.h"
#include "cli/command_options.h"
#include "engine/bundled_models.h"
#include "engine/text_side.h"

namespace heirloom::cli {
namespace {

struct TokenizeArguments {
  std::string model, prompt, log_level = "info";
  bool json = false, as_text = false, from_stdin = true;
};

int run(const TokenizeArguments& arguments) {
  log::set_level(log::parse_level(arguments.log_level));
  const model::ModelFiles files = model::open_model_files(find_model(arguments.model));
  const text::Tokenizer tokenizer = engine::open_tokenizer(files);
  std::string input = arguments.prompt;
  if (arguments.from_stdin) input.assign(std::istreambuf_iterator<char>(std::cin), {});
  const std::vector<std::int32_t> ids =
      tokenizer.encode(input, arguments.as_text ? text::SpecialTokens::as_text : text::SpecialTokens::parse);
  Json pieces = Json::array();
  for (const std::int32_t id : ids) pieces.push_back(tokenizer.piece(id));
  if (arguments.json) {
    std::printf("%s\n", Json{{"ids", ids}, {"pieces", pieces}}.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::printf("%8d  %s\n", ids[i], pieces[i].dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    }
  }
  return 0;
}

}  // namespace

void add_tokenize_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = app.add_subcommand("tokenize", "show the token ids of a text (from -p or standard input)");
  command->add_option("MODEL", arguments->model, "a .gguf file, a Hugging Face folder, or demo-vl / demo-moe")->required();
  CLI::Option* prompt = command->add_option("-p,--prompt", arguments->prompt, "the text; default: standard input");
  command->add_flag("--as-text", arguments->as_text, "special tokens in the text are plain text");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  command->add_option("--log-level", arguments->log_level, "debug, info, warning, error or off")->capture_default_str();
  command->callback([&action, arguments, prompt] {
    arguments->from_stdin = prompt->count() == 0;
    action = [arguments] { return run(*arguments); };
  });
}

}  // namespace heirloom::cli
