// heirloom eval: asks every item of question files greedily and counts right answers per task.
#include <cstdio>
#include <map>
#include <thread>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/command_options.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/question_file.h"

namespace heirloom::cli {
namespace {

struct EvalArguments {
  CommonOptions common;
  std::string model;
  std::vector<std::string> files;
  bool json = false;
  int parallel = 1;
};

struct Item {
  Question question;
  std::shared_ptr<RequestHandle> handle;
};

struct Score {
  int n = 0, right = 0;
};

int run(const EvalArguments& arguments) {
  EngineOptions options = arguments.common.engine_options(arguments.model);
  options.parallel = arguments.parallel;
  std::vector<Item> items;
  for (Question& question : read_questions(arguments.files)) items.push_back({std::move(question), nullptr});
  const std::unique_ptr<Engine> engine = Engine::load(options);
  catch_interrupts();
  const auto progress = progress_bar();
  std::map<std::string, Score> scores;
  Score total;
  // A few requests are kept in flight, so that slots never wait; answers are taken in order.
  const std::size_t ahead = static_cast<std::size_t>(arguments.parallel) * 2;
  std::size_t submitted = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (; submitted < items.size() && submitted < i + ahead; ++submitted) {
      items[submitted].handle = engine->submit(make_request(items[submitted].question), {}, {});
    }
    Item& item = items[i];
    const Question& question = item.question;
    while (!item.handle->finished()) {
      if (take_interrupt()) throw Error(ErrorKind::cancelled, "interrupted");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const RequestResult& result = item.handle->wait();
    if (result.error) throw result.error->wrap(question.where);
    const bool right = result.text.find(question.key) != std::string::npos;
    Score& score = scores[question.task];
    ++score.n;
    ++total.n;
    score.right += right;
    total.right += right;
    if (arguments.json) {
      const Json line{{"id", question.id}, {"task", question.task}, {"text", result.text}, {"token_ids", result.token_ids}};
      std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    }
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(items.size()), "eval");
    item = {};
  }
  if (arguments.json) {
    Json summary = Json::object();
    for (const auto& [task, score] : scores) summary[task] = {{"n", score.n}, {"right", score.right}};
    std::printf("%s\n", Json{{"summary", summary}}.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    for (const auto& [task, score] : scores) {
      std::printf("%-16s %4d/%-4d %5.1f %%\n", task.c_str(), score.right, score.n, 100.0 * score.right / score.n);
    }
    std::printf("%-16s %4d/%-4d %5.1f %%\n", "all", total.right, total.n, 100.0 * total.right / total.n);
  }
  return 0;
}

}  // namespace

void add_eval_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand("eval", "ask every item of .jsonl question files, accuracy per task");
  add_model_option(*command, arguments->model, arguments->common);
  command->add_option("FILE", arguments->files, ".jsonl files: messages, image, tools, enable_thinking, key")->required();
  command->add_option("--parallel", arguments->parallel, "questions answered at once")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_flag("--json", arguments->json, "one line an item, then a summary");
  add_common_options(*command, arguments->common);
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
