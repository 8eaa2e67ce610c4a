// The command line: parses, runs one command, turns an Error into one line on stderr and an exit code.
#include <cstdio>
#include <exception>

#include "base/log.h"
#include "cli/command_options.h"

namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  heirloom run demo-vl --image examples/shapes.png -p \"Describe the picture.\"\n"
    "  heirloom chat demo-moe\n"
    "  heirloom verify FOLDER --reference golden/dumps/NAME\n"
    "Exit codes: 0 done, 1 internal error, 2 usage, 3 bad or unsupported file, 4 does not fit, 5 device error, 130 interrupted.";

}  // namespace

int main(int argc, char** argv) {
  using namespace heirloom;
  CLI::App app("heirloom runs hybrid-attention models (Qwen3.5/3.6, MiniCPM-V-4.6) on the hardware you have.", "heirloom");
  app.set_version_flag("--version", "heirloom " HEIRLOOM_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  cli::Action action;
  cli::add_run_command(app, action);
  cli::add_chat_command(app, action);
  cli::add_serve_command(app, action);
  cli::add_eval_command(app, action);
  cli::add_verify_command(app, action);
  cli::add_quantize_command(app, action);
  cli::add_prune_command(app, action);
  cli::add_bench_command(app, action);
  cli::add_info_command(app, action);
  cli::add_tokenize_command(app, action);
  try {
    app.parse(argc, argv);
    return action();
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "heirloom: %s; see heirloom --help\n", error.what());
    return exit_code(ErrorKind::usage);
  } catch (const Error& error) {
    std::fprintf(stderr, "heirloom: %s\n", error.what());
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "heirloom: out of memory; a smaller context, model or quantisation would fit\n");
    return exit_code(ErrorKind::does_not_fit);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "heirloom: internal error: %s\n", error.what());
    return exit_code(ErrorKind::internal);
  }
}
