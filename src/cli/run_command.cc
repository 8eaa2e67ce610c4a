// heirloom run: one question, one answer.
#include <chrono>
#include <cstdio>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/cache_options.h"
#include "cli/command_options.h"
#include "cli/generate.h"
#include "cli/interrupt.h"
#include "cli/pictures.h"

namespace heirloom::cli {
namespace {

struct RunArguments {
  CommonOptions common;
  SamplingOptions sampling;
  CacheOptions cache;
  std::string model, prompt, system, messages;
  std::vector<std::string> images, stop;
  int max_tokens = 0, context = 0;
  bool think = false, json = false, raw = false;
};

Request make_request(const RunArguments& arguments) {
  Request request;
  const bool has_prompt = !arguments.prompt.empty() || !arguments.images.empty();
  if (has_prompt == !arguments.messages.empty()) {
    fail(ErrorKind::usage, "give a question with -p TEXT, or a whole conversation with --messages FILE.json");
  }
  if (!arguments.messages.empty()) {
    if (arguments.raw || !arguments.system.empty()) {
      fail(ErrorKind::usage, "--messages holds the whole conversation; --raw and --system go with -p");
    }
    const std::filesystem::path path = arguments.messages;
    const OrderedJson json = parse_json(read_text_file(path), arguments.messages);
    read_conversation(json, path.parent_path(), arguments.messages, request);
  } else if (arguments.raw) {
    if (!arguments.images.empty()) fail(ErrorKind::usage, "--raw sends the text without a template and takes no --image");
    request.raw_text = arguments.prompt;
  } else {
    request.messages = Json::array();
    if (!arguments.system.empty()) request.messages.push_back({{"role", "system"}, {"content", arguments.system}});
    Json content = Json::array();
    for (const std::string& image : arguments.images) {
      request.images.push_back(read_picture(image));
      content.push_back({{"type", "image"}});
    }
    if (!arguments.prompt.empty()) content.push_back({{"type", "text"}, {"text", arguments.prompt}});
    request.messages.push_back({{"role", "user"}, {"content", std::move(content)}});
  }
  if (arguments.think) request.template_kwargs["enable_thinking"] = true;
  request.max_tokens = arguments.max_tokens;
  request.stop = arguments.stop;
  return request;
}

double rate(double tokens, double ms) { return ms > 0 ? tokens / ms * 1000 : 0; }

int run(const RunArguments& arguments) {
  EngineOptions options = arguments.common.engine_options(arguments.model);
  arguments.cache.apply(options);
  options.context_tokens = arguments.context;
  Request request = make_request(arguments);  // a bad picture or file is told before the model loads
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Engine> engine = Engine::load(options);
  const double load_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  request.sampling = arguments.sampling.over(engine->default_sampling());
  catch_interrupts();
  const RequestResult result = generate(*engine, std::move(request), !arguments.json);

  const RequestTimings& t = result.timings;
  const double computed = static_cast<double>(result.prompt_tokens - result.cached_tokens);
  const double decoded = static_cast<double>(result.token_ids.empty() ? 0 : result.token_ids.size() - 1);
  if (arguments.json) {
    const Json json{{"text", result.text},
                    {"token_ids", result.token_ids},
                    {"finish_reason", finish_reason_name(result.finish_reason)},
                    {"prompt_tokens", result.prompt_tokens},
                    {"cached_tokens", result.cached_tokens},
                    {"timings",
                     {{"load_ms", load_ms},
                      {"image_ms", t.image_ms},
                      {"prefill_ms", t.prefill_ms},
                      {"prefill_tok_s", rate(computed, t.prefill_ms)},
                      {"decode_ms", t.decode_ms},
                      {"decode_tok_s", rate(decoded, t.decode_ms)}}},
                    {"placement", engine->placement()}};
    std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else if (!result.text.ends_with('\n')) {
    std::printf("\n");
  }
  std::fflush(stdout);
  if (arguments.common.timings) {
    log::info("load {:.0f} ms, pictures {:.0f} ms, prompt {} tokens ({} cached) {:.0f} ms ({:.1f} tok/s), answer {} tokens {:.0f} ms ({:.1f} tok/s)",
              load_ms, t.image_ms, result.prompt_tokens, result.cached_tokens, t.prefill_ms, rate(computed, t.prefill_ms),
              result.token_ids.size(), t.decode_ms, rate(decoded, t.decode_ms));
    print_timings(engine->timings_report());
  }
  return result.finish_reason == FinishReason::cancelled ? exit_code(ErrorKind::cancelled) : 0;
}

}  // namespace

void add_run_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "answer one question about text and pictures");
  add_model_option(*command, arguments->model, arguments->common);
  command->add_option("-p,--prompt", arguments->prompt, "the question");
  command->add_option("--image", arguments->images, "a picture (PNG, JPEG, WebP, BMP, GIF); may be given several times");
  command->add_option("--system", arguments->system, "system message");
  command->add_option("--messages", arguments->messages, "a whole conversation as JSON: {\"messages\", \"tools\", \"enable_thinking\"}");
  command->add_flag("--think", arguments->think, "let the model think first");
  command->add_option("-n,--max-tokens", arguments->max_tokens, "answer length at most; 0 = the model's own limit")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--stop", arguments->stop, "end the answer before this text; may be given several times");
  command->add_flag("--raw", arguments->raw, "send the text as it is, without the chat template");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  command->add_option("--ctx", arguments->context, "context length in tokens; 0 = the model's")->check(CLI::NonNegativeNumber);
  add_sampling_options(*command, arguments->sampling);
  add_cache_options(*command, arguments->cache);
  add_common_options(*command, arguments->common);
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
