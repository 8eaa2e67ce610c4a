// heirloom chat: a conversation on the terminal. Ctrl-C stops the answer, not the program.
#include <editline/readline.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "cli/cache_options.h"
#include "cli/chat_session.h"
#include "cli/command_options.h"
#include "cli/generate.h"
#include "cli/interrupt.h"
#include "cli/pictures.h"

namespace heirloom::cli {
namespace {

struct ChatArguments {
  CommonOptions common;
  SamplingOptions sampling;
  CacheOptions cache;
  std::string model, system, session;
  int max_tokens = 0, context = 0;
  bool think = false;
};

constexpr const char* kHelp =
    "/image FILE   add a picture to the next message\n"
    "/system TEXT  set the system message and start over\n"
    "/think        let the model think first (again: off)\n"
    "/undo         take back the last question and its answer\n"
    "/new          start over\n"
    "/help         this text\n"
    "/quit         leave (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next one. Ctrl-C stops an answer.\n";

/// Lines from a terminal (with history and arrow keys) or from a pipe. nullopt at the end of input.
class LineReader {
 public:
  LineReader() : terminal_(::isatty(STDIN_FILENO) != 0) {
    if (!terminal_) return;
    using_history();
    if (const char* home = std::getenv("HOME")) history_ = std::filesystem::path(home) / ".heirloom_history";
    if (!history_.empty()) read_history(history_.c_str());
  }
  ~LineReader() {
    if (terminal_ && !history_.empty()) write_history(history_.c_str());
  }
  bool terminal() const { return terminal_; }

  std::optional<std::string> next() {
    std::string text;
    while (true) {
      std::string line;
      if (terminal_) {
        char* raw = readline(text.empty() ? "> " : ". ");
        if (take_interrupt()) {  // Ctrl-C at the prompt drops the line; readline returns null or what was typed so far
          std::free(raw);
          std::fputs("\n", stderr);
          text.clear();
          continue;
        }
        if (raw == nullptr) return std::nullopt;
        line = raw;
        std::free(raw);
        if (!line.empty()) add_history(line.c_str());
      } else if (!std::getline(std::cin, line)) {
        return std::nullopt;
      }
      if (!line.ends_with('\\')) return text + line;
      line.pop_back();
      text += line + "\n";
    }
  }

 private:
  bool terminal_;
  std::filesystem::path history_;
};

/// True if the line was a command. Sets `quit` when it was the last one.
bool run_command(const std::string& line, ChatSession& session, bool& quit) {
  if (!line.starts_with('/')) return false;
  const std::size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(line.find_first_not_of(' ', space) == std::string::npos ? line.size() : line.find_first_not_of(' ', space));
  if (name == "/help") {
    std::fputs(kHelp, stderr);
  } else if (name == "/quit" || name == "/exit") {
    quit = true;
  } else if (name == "/image") {
    if (rest.empty()) fail(ErrorKind::usage, "/image FILE: the file's name is missing");
    session.attach(rest);
    std::fprintf(stderr, "(%s goes with your next message)\n", rest.c_str());
  } else if (name == "/system") {
    session.restart(rest);
  } else if (name == "/new") {
    session.restart();
  } else if (name == "/undo") {
    if (!session.undo()) std::fputs("(nothing to take back)\n", stderr);
  } else if (name == "/think") {
    std::fprintf(stderr, "(thinking is %s)\n", session.toggle_thinking() ? "on" : "off");
  } else {
    fail(ErrorKind::usage, "{}: unknown command; /help lists them", name);
  }
  return true;
}

int run(const ChatArguments& arguments) {
  EngineOptions options = arguments.common.engine_options(arguments.model);
  arguments.cache.apply(options);
  options.context_tokens = arguments.context;
  ChatSession session(arguments.session, arguments.system, arguments.think);
  if (!arguments.session.empty() && options.cache_dir.empty()) options.cache_dir = arguments.session + ".cache";
  const std::unique_ptr<Engine> engine = Engine::load(options);
  const SamplingParams sampling = arguments.sampling.over(engine->default_sampling());
  LineReader reader;
  catch_interrupts();
  if (reader.terminal()) std::fprintf(stderr, "%s. /help for help.\n", engine->model_name().c_str());
  if (session.turns() > 0) std::fprintf(stderr, "(conversation of %d turns goes on)\n", session.turns());

  bool quit = false;
  while (!quit) {
    const std::optional<std::string> line = reader.next();
    if (!line) break;
    if (line->find_first_not_of(" \t\n") == std::string::npos) continue;
    try {
      if (run_command(*line, session, quit)) continue;
      Request request = session.ask(*line);
      request.sampling = sampling;
      request.max_tokens = arguments.max_tokens;
      const RequestResult result = generate(*engine, std::move(request), true);
      std::printf("\n");
      std::fflush(stdout);
      session.answered(result.text);
      if (result.finish_reason == FinishReason::cancelled) std::fputs("(stopped)\n", stderr);
      if (result.finish_reason == FinishReason::length) std::fputs("(cut at the length limit)\n", stderr);
      if (arguments.common.timings) {
        log::info("prompt {} tokens, {} of them cached, first token after {:.0f} ms", result.prompt_tokens,
                  result.cached_tokens, result.timings.first_token_ms);
      }
    } catch (const Error& error) {  // a bad picture or a full context ends neither the program nor the conversation
      session.forget_question();
      std::fprintf(stderr, "%s\n", error.what());
    }
  }
  return 0;
}

}  // namespace

void add_chat_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ChatArguments>();
  CLI::App* command = app.add_subcommand("chat", "talk with a model on the terminal; /help lists its commands");
  add_model_option(*command, arguments->model, arguments->common);
  command->add_option("--system", arguments->system, "system message");
  command->add_option("--session", arguments->session, "keep the conversation in this file and go on with it");
  command->add_flag("--think", arguments->think, "let the model think first");
  command->add_option("-n,--max-tokens", arguments->max_tokens, "answer length at most")->check(CLI::NonNegativeNumber);
  command->add_option("--ctx", arguments->context, "context length in tokens; 0 = the model's")->check(CLI::NonNegativeNumber);
  add_sampling_options(*command, arguments->sampling);
  add_cache_options(*command, arguments->cache);
  add_common_options(*command, arguments->common);
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace heirloom::cli
