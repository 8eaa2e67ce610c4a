// heirloom serve MODEL: the HTTP server.
#include <sstream>

#include "base/mapped_file.h"
#include "cli/cache_options.h"
#include "cli/command_options.h"
#include "server/server.h"

namespace heirloom::cli {
namespace {

struct ServeOptions {
  CommonOptions common;
  std::string model;
  server::ServerOptions server;
  int parallel = 4;
  int context_tokens = 0;
  std::string cache_ram = "1GiB", cache_dir, cache_disk = "8GiB", max_body, api_key_file;
  bool keep_volatile_lines = false;
  bool no_web = false;
  double grace_s = 30;
};

int serve(const ServeOptions& given) {
  EngineOptions engine_options = given.common.engine_options(given.model);
  engine_options.parallel = given.parallel;
  engine_options.context_tokens = given.context_tokens;
  engine_options.cache_ram_bytes = parse_size(given.cache_ram, "--cache-ram");
  engine_options.cache_dir = given.cache_dir;
  engine_options.cache_disk_bytes = parse_size(given.cache_disk, "--cache-disk");
  engine_options.strip_volatile_lines = !given.keep_volatile_lines;
  server::ServerOptions options = given.server;
  options.web_page = !given.no_web;
  options.grace = std::chrono::milliseconds(static_cast<std::int64_t>(given.grace_s * 1000));
  if (!given.max_body.empty()) options.http.body_bytes = parse_size(given.max_body, "--max-body");
  if (!given.api_key_file.empty()) {
    std::istringstream lines(read_text_file(given.api_key_file, 1 << 20));
    for (std::string line; std::getline(lines, line);) {
      line.erase(line.find_last_not_of(" \r\t") + 1);
      if (!line.empty()) options.api_keys.push_back(line);
    }
    if (options.api_keys.empty()) throw Error(ErrorKind::usage, "--api-key-file " + given.api_key_file + ": holds no key");
  }
  for (const std::string& key : options.api_keys) {
    if (key.empty()) throw Error(ErrorKind::usage, "--api-key: the key is empty");
  }
  const auto engine = Engine::load(engine_options);
  server::run_server(*engine, options);
  if (given.common.timings) print_timings(engine->timings_report());
  return 0;
}

}  // namespace

void add_serve_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "OpenAI- and Anthropic-compatible HTTP server with a web page");
  add_model_option(*command, options->model, options->common);
  server::ServerOptions& server = options->server;
  command->add_option("--host", server.host, "address to listen on; 0.0.0.0 for every network")->capture_default_str();
  command->add_option("--port", server.port, "port; 0 picks a free one")->capture_default_str()->check(CLI::Range(0, 65535));
  command->add_option("--parallel", options->parallel, "requests worked on at the same time")->capture_default_str()->check(CLI::Range(1, 256));
  command->add_option("--ctx", options->context_tokens, "context of one request in tokens; 0 = the model's, bounded by memory")
      ->check(CLI::Range(0, 1 << 24));
  command->add_option("--api-key", server.api_keys, "key that clients must send; may be given several times");
  command->add_option("--api-key-file", options->api_key_file, "file with one key a line (keeps keys out of the process list)");
  command->add_option("--cache-ram", options->cache_ram, "memory for prefix snapshots and picture features")->capture_default_str();
  command->add_option("--cache-dir", options->cache_dir, "folder for prefix snapshots that survive a restart");
  command->add_option("--cache-disk", options->cache_disk, "limit of that folder")->capture_default_str();
  command->add_option("--cors-origin", server.cors_origins, "web origin allowed besides local ones; '*' allows any");
  command->add_flag("--think", server.think, "thinking where a request does not say");
  command->add_flag("--no-web", options->no_web, "no web page at /");
  command->add_flag("--keep-volatile-lines", options->keep_volatile_lines,
                    "keep billing headers that some clients put first in the system text (they defeat the prefix cache)");
  command->add_option("--max-waiting", server.max_waiting, "requests admitted at one time; more are answered 503")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--max-body", options->max_body, "largest request body (64MiB)");
  command->add_option("--max-connections", server.http.connections, "connections at one time")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  command->add_option("--shutdown-grace", options->grace_s, "seconds that running requests get at shutdown")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  add_common_options(*command, options->common);
  command->callback([options, &action] { action = [options] { return serve(*options); }; });
}

}  // namespace heirloom::cli
